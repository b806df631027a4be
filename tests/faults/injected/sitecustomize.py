"""Python imports this at its start when this folder is on its path: kill points for processes that runs start."""

import points  # type: ignore[import-not-found]  # of this folder

points.install_from_environment()
