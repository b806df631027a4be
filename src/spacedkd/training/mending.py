"""A student's folder, as a run leaves it at its end, or as it is made again when it was lost."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from spacedkd.documents import read_small_json
from spacedkd.files import Folder, write_json
from spacedkd.models import students
from spacedkd.training import checkpoint
from spacedkd.training.building import build_models
from spacedkd.training.folder import Journal, RunFolder
from spacedkd.training.plan import Plan
from spacedkd.training.tensor_file import system_errors


def saved_models(plan: Plan) -> dict[str, nn.Module]:
    """The plan's models, newly built, with the moving average where there is one."""
    models = build_models(plan)
    return models if plan.spec.ema is None else models | {"average": deepcopy(models[plan.student])}


def write_students(plan: Plan, folder: RunFolder, modules: Mapping[str, nn.Module]) -> None:
    """The student, and beside it its moving average."""
    folders = {plan.student: folder.student} | ({} if plan.spec.ema is None else {"average": folder.average})
    for name, place in folders.items():
        write_student(plan, modules[name].network, place, folder.handle)  # type: ignore[arg-type]


def student_digests(plan: Plan, folder: RunFolder) -> dict[str, str]:
    """SHA-256 of the weights of the student, and of its moving average, by the names of their folders."""
    places = [folder.student] if plan.spec.ema is None else [folder.student, folder.average]
    return {place.name: folder.handle.digest(place / "model.safetensors") for place in places}


def write_student(plan: Plan, network: nn.Module, place: Path, within: Folder) -> None:
    """The student's network, as it is at some time of the run."""
    with within.write_folder(place) as unfinished, system_errors():
        students.save(network, plan.network(plan.roles[-1]), plan.data.shown, unfinished, data=plan.spec.data)


def mend(plan: Plan, folder: RunFolder) -> bool:
    """Give a finished run its student again, from a checkpoint of its last turn; whether there is one.

    The journal must be what was written until then; what somebody has added to it is cut off.
    """
    found = checkpoint.newest(folder.checkpoint, folder.journal)
    if found.position.turns != len(plan.turns):
        return False
    models = saved_models(plan)
    exact = torch.float64 if plan.spec.precision == "64-true" else torch.float32
    learned = torch.bfloat16 if plan.spec.precision == "bf16-true" else exact
    for name, model in models.items():
        model.to(exact if name == "average" else learned)
    with folder.lock():
        position = checkpoint.load(found.path, plan.spec.fingerprints(), models, {})
        write_students(plan, folder, models)
        with Journal(folder.journal, position.journal_bytes, position.journal_digest, folder.handle):
            pass
        ended = read_small_json(folder.result, folder.handle)
        if "digests" in ended:  # another version of safetensors may write the same weights in another way
            ended["digests"] |= student_digests(plan, folder)
            write_json(folder.result, ended, folder.handle)
    return True
