"""Try a release as somebody would who installs it: an empty environment, nothing but the wheel.

python -m scripts.release_check dist      # what `make release-check` does after building
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
USER_FILE = """\
import spacedkd

run = spacedkd.train(spacedkd.RunSpec(schedule=spacedkd.Spaced("1.5ep")), "runs/mine")
reveal_type(run.accuracy)
spacedkd.RunSpec(epochs="ten")
"""
TINY = "--data digits --train-limit 40 --width 4 --epochs 2 --batch-size 8 --interval 1ep --out runs/tiny"


def check_wheel(wheel: Path) -> None:
    """The wheel holds the package and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in package_files()}
    inside = {name for name in names if ".dist-info/" not in name}
    if inside != wanted:
        raise SystemExit(f"{wheel.name} lacks {sorted(wanted - inside)} and has besides {sorted(inside - wanted)}")


def package_files() -> list[Path]:
    """Every file of the package in the repository."""
    folder = ROOT / "src" / "spacedkd"
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def check_sdist(sdist: Path) -> None:
    """What is needed to build, test and document the package is in the archive."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = "pyproject.toml LICENSE README.md CHANGELOG.md constraints.txt Makefile mkdocs.yml docs/data.md".split()
    needed += ["tests/conftest.py", "tests/docs/blocks.py", "examples/own_loop.py", "benchmarks/ways.py"]
    needed += ["results/README.md"]
    needed += [
        "scripts/site.py",
        "src/spacedkd/reporting/look.css",
        "src/spacedkd/__init__.pyi",
        "src/spacedkd/py.typed",
    ]
    if missing := sorted({*needed} - names):
        raise SystemExit(f"{sdist.name} lacks {missing}")


INSTALL = "-m pip install --quiet --disable-pip-version-check -c".split()


def try_out_slim(wheel: Path, folder: Path) -> None:
    """Install the wheel without extras into an environment of its own, and use what that brings."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    _python(folder, *INSTALL, ROOT / "constraints.txt", wheel)
    _python(folder, "-m", "pip", "check")
    print_size(folder)
    says_how_to_add_the_rest(_python(folder, "-W", "error", ROOT / "scripts" / "slim_use.py", folder / "teacher"))
    command = _run(folder, folder / "venv" / "bin" / "spacedkd", "train", check=False, errors=True)
    says_how_to_add_the_rest(command)


def says_how_to_add_the_rest(printed: str) -> None:
    """Refuse what is not one line that ends with the command that adds the libraries for training."""
    if len(printed.splitlines()) != 1 or not printed.rstrip().endswith("pip install 'spacedkd[train]'"):
        raise SystemExit(f"a slim install does not say in one line how to add the rest; it prints:\n{printed}")


def print_size(folder: Path) -> None:
    """Print how many packages are installed, and how large they are."""
    count = len(_python(folder, "-m", "pip", "list", "--format", "freeze").splitlines())
    size = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file())
    print(f"{count} packages, {size / 1e6:.0f} MB")


def try_out(wheel: Path, folder: Path) -> None:
    """Install the wheel with its extra `train` into an environment of its own, and use it."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    _python(folder, *INSTALL, ROOT / "constraints.txt", f"{wheel}[train]", "mypy")
    _python(folder, "-m", "pip", "check")
    print_size(folder)
    for command in (
        "spacedkd --version",
        "spacedkd list methods",
        f"spacedkd train {TINY}",
        "spacedkd report runs/tiny",
    ):
        _run(folder, folder / "venv" / "bin" / "spacedkd", *shlex.split(command)[1:])
    _python(folder, "-c", "import spacedkd; print(spacedkd.RunSpec())")
    _python(
        folder, "-c", "import spacedkd.models, timm; timm.create_model('local-dir:runs/tiny/student', pretrained=True)"
    )
    (folder / "mine.py").write_text(USER_FILE)
    checked = _run(folder, folder / "venv" / "bin" / "mypy", "--strict", "mine.py", check=False)
    if not sees_types(checked):
        raise SystemExit(f"mypy does not see the package's types; it says:\n{checked}")


def sees_types(checked: str) -> bool:
    """Whether mypy knows what the user's file gets, and what is wrong with it.

    >>> sees_types('mine.py:4: note: Revealed type is "Any"')
    False
    >>> sees_types('note: Revealed type is "float"; error: "RunSpec" has incompatible type "str"; expected "float"')
    True
    """
    revealed = re.search(r'Revealed type is "(builtins\.)?float"', checked)
    return revealed is not None and 'incompatible type "str"; expected "float"' in checked


def _python(folder: Path, *words: str | Path) -> str:
    return _run(folder, folder / "venv" / "bin" / "python", *words)


def _run(folder: Path, *words: str | Path, check: bool = True, errors: bool = False) -> str:
    """What a command prints, run in the folder as if nothing of the repository were there."""
    print("$", shlex.join(str(word) for word in words), flush=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    to = subprocess.STDOUT if errors else None
    done = subprocess.run(words, cwd=folder, env=clean, stdout=subprocess.PIPE, stderr=to, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if check and done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {shlex.join(str(word) for word in words)}")
    return done.stdout


def main(dist: Path) -> None:
    """The one wheel and the one archive in a folder."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    for try_it in (try_out_slim, try_out):
        with tempfile.TemporaryDirectory() as folder:
            try_it(wheel.resolve(), Path(folder))
    print(f"{wheel.name} and {sdist.name} are ready.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
