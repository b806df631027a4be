"""Uploads to the Hugging Face hub."""

import re
from pathlib import Path

from spacedkd.runtime.errors import UserError, first_line

ANSWER_SECONDS = 5.0


def check_possible(repository: str) -> None:
    """Refuse, before any work, a name that the hub cannot have, a missing token and a hub that does not answer."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or not repository.isascii():
        raise UserError(f"--push wants OWNER/NAME, for instance me/resnet18-cifar100; got {repository!r}.")
    if not get_token():
        raise UserError("--push needs a token of the Hugging Face hub: log in with `hf auth login`, or set HF_TOKEN.")
    try:
        HfApi().model_info(repository, timeout=ANSWER_SECONDS)
    except HFValidationError as error:
        raise UserError(f"--push: the hub has no such names: {first_line(error)}") from None
    except HfHubHTTPError:  # the hub answers; the model may not exist yet
        pass
    except Exception as error:  # of the network
        raise UserError(
            f"--push: the hub at {constants.ENDPOINT} does not answer ({first_line(error)}). Export without --push, "
            "and upload the folder later."
        ) from None


def push(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder, and return its address."""
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        address = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Export of a student trained with spacedkd"
        )
    except Exception as error:  # rights, quotas, the network: the hub's client says which
        raise UserError(
            f"{repository} cannot be uploaded: {first_line(error)}. All files are in {folder}; later: "
            f"hf upload {repository} {folder}"
        ) from None
    return str(address)
