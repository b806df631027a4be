"""Loggers by name, and what has to be installed for each."""

from collections.abc import Iterable
from importlib.util import find_spec

from spacedkd.errors import UserError, install_command, unknown

LOGGERS = {
    "csv": ("", ""),
    "tensorboard": ("tensorboard", ""),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
}
"""name -> the module it needs, if any, and what pip is to install for it; nothing where it is an extra of that name"""


def check_names(names: Iterable[str]) -> None:
    """Refuse a logger that there is not, and one that is named twice."""
    seen = set()
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        if name in seen:
            raise UserError(f"Logger {name} is named twice: once is enough.")
        seen.add(name)


def check_installed(names: Iterable[str]) -> None:
    """Refuse a logger whose library is not here, before anything is trained for it."""
    for name in names:
        module, package = LOGGERS[name]
        if module and find_spec(module) is None:
            command = f"pip install {package}" if package else install_command(name)
            raise UserError(f"Logging to {name} needs a library that is not installed: {command}")
