"""A request to export a run, checked before torch is imported, and uploads to the Hugging Face hub."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spacedkd.runs.result import Run, read_run
from spacedkd.runtime.errors import UserError, first_line, install_command

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class ExportRequest:
    """The settings of an export; see `export`."""

    run: Path
    to: Path
    license: str | None = None
    average: bool = False
    best: bool = False
    onnx: bool = False
    push: str | None = None
    private: bool = False

    def check(self) -> Run:
        """Return the run to export; refuse settings that cannot be done."""
        if self.private and self.push is None:
            raise UserError("--private is about --push OWNER/NAME: add it, or leave --private out.")
        if self.average and self.best:
            raise UserError("--average and --best are two students: export one of them.")
        if self.license is not None and not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", self.license):
            raise UserError(
                "--license wants the hub's name of one, such as apache-2.0, mit, cc-by-4.0 or other; "
                f"got {self.license!r}."
            )
        if self.to.exists() and (not self.to.is_dir() or any(self.to.iterdir())):
            upload = f" If it is this export already: hf upload {self.push} {self.to}" if self.push is not None else ""
            raise UserError(f"{self.to} exists, and nothing is overwritten: choose another --to, or remove it.{upload}")
        if self.onnx and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
            raise UserError(f"--onnx needs {', '.join(missing)}: {install_command('onnx')}")
        run = read_run(self.run)
        if run.spec.task != "classification":
            raise UserError(
                f"export writes classifiers, and the task of {self.run} is {run.spec.task}: its weights are in "
                f"{self.run / 'student'}, which spacedkd.load_student opens."
            )
        if self.average and "average" not in run.accuracies:
            raise UserError(f"{self.run} has no average: it was trained without --average. Leave --average out.")
        if self.best and "best" not in run.plan:
            raise UserError(f"{self.run} has no student of its best epoch: it was trained without --holdout.")
        if self.push is not None:
            check_push(self.push)
        return run


# The Hugging Face hub

ANSWER_SECONDS = 5.0


def check_push(repository: str) -> None:
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


def upload(folder: Path, repository: str, private: bool) -> str:
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
