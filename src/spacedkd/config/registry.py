"""Methods and loggers by name; neither torch nor any of them is imported to know that they exist."""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from spacedkd.runtime.errors import UserError, install_command, unknown

METHODS: Mapping[str, str] = {
    "none": "spacedkd.methods.no_kd:NoKD",
    "kd": "spacedkd.methods.kd:KD",
    "hinton": "spacedkd.methods.hinton:Hinton",
    "fitnet": "spacedkd.methods.fitnet:FitNet",
    "lskd": "spacedkd.methods.lskd:LSKD",
    "ctkd": "spacedkd.methods.ctkd:CTKD",
    "dkd": "spacedkd.methods.dkd:DKD",
    "eskd": "spacedkd.methods.eskd:ESKD",
    "shake": "spacedkd.methods.shake:SHAKE",
    "takd": "spacedkd.methods.takd:TAKD",
    "ban": "spacedkd.methods.ban:BAN",
    "dml": "spacedkd.methods.dml:DML",
    "kdcl": "spacedkd.methods.kdcl:KDCL",
    "tsb-like": "spacedkd.methods.tsb:TSB",
    "pcl": "spacedkd.methods.pcl:PCL",
    "one": "spacedkd.methods.one:ONE",
    "self-kd": "spacedkd.methods.self_kd:SelfKD",
    "dlb": "spacedkd.methods.dlb:DLB",
    "ps-kd": "spacedkd.methods.ps_kd:PSKD",
}
"""name -> where the class is written"""

LOGGERS = {
    "csv": ("", ""),
    "tensorboard": ("tensorboard", ""),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
}
"""name -> the module a logger needs, if any, and the package that pip installs; empty where an extra has that name"""


def check_names(names: Iterable[str]) -> None:
    """Refuse a logger that does not exist, and one that is named twice."""
    seen = set()
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        if name in seen:
            raise UserError(f"Logger {name} is named twice: once is enough.")
        seen.add(name)


def check_installed(names: Iterable[str]) -> None:
    """Refuse a logger whose library is not installed, before anything is trained."""
    for name in names:
        module, package = LOGGERS[name]
        if module and find_spec(module) is None:
            command = f"pip install {package}" if package else install_command(name)
            raise UserError(f"Logging to {name} needs a library that is not installed: {command}")
