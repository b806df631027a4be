"""The Hugging Face hub: which names can be its, and whether it answers, so that nobody waits for one that does not."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spacedkd.runtime.errors import UserError, unknown

ANSWER_SECONDS = 5.0
NAME = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
FOLDERS = ("data", "datasets", "images", "runs")
"""names of folders that nobody means as an owner on the hub"""


def is_name(name: str) -> bool:
    """Whether this can be owner/name on the hub; what lies in a folder that is here, or usually is, must be there."""
    if not NAME.fullmatch(name):
        return False
    path = Path(name)
    if path.parent.is_dir():
        held = sorted(one.name for one in path.parent.iterdir())
        if not held:
            raise UserError(f"There is no {path.name} in the folder {path.parent}, which is empty.")
        raise unknown(f"place in the folder {path.parent}", path.name, held)
    if path.parts[0] in FOLDERS:
        raise UserError(f"There is no folder or file {name} here, and not even a folder {path.parent}.")
    return True


@contextmanager
def asked_briefly(name: str) -> Iterator[None]:
    """While it lasts, the hub's client looks into its cache alone where the hub does not answer within seconds."""
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if not any(before):
            HfApi().dataset_info(name, timeout=ANSWER_SECONDS)
    except RepositoryNotFoundError:
        raise
    except HfHubHTTPError:  # it answers: the client knows when to ask again
        pass
    except Exception:  # of the network; each of the client's own attempts would wait again
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
