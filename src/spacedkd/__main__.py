import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parent.parent:
    del sys.path[0]  # the current folder, in which `spacedkd` does not look for libraries either

from spacedkd.cli import main

if __name__ == "__main__":
    main()
