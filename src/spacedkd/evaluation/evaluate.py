"""`evaluate`, the public function: measure a run's networks with instruments, into evaluation.json of its folder."""

from pathlib import Path
from typing import Any

from spacedkd.config.objects import Objects
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import check_folder
from spacedkd.evaluation import document
from spacedkd.evaluation.accuracy import Accuracy
from spacedkd.evaluation.document import EvaluationDocument
from spacedkd.evaluation.instrument import EvaluationSpec, Instrument, Progress, silent
from spacedkd.evaluation.subject import Subject, TrainedNetworks
from spacedkd.runs.folder import make_folder
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import UserError, is_out_of_memory
from spacedkd.runtime.user_code import is_from_user_code, user_code_error
from spacedkd.training.device import torch_settings_restored
from spacedkd.training.trained_models import load_run


def evaluate(
    run: Run | Path | str,
    spec: EvaluationSpec | None = None,
    *,
    unfinished: bool = False,
    accelerator: str | None = None,
    threads: int | None = None,
    trust_code: bool = False,
    progress: Progress = silent,
    **objects: Any,
) -> EvaluationDocument:
    """Measure a run's networks, and return what its evaluation.json holds afterwards.

    `spec` names the instruments; without it accuracy alone is measured. A run that is not finished is refused, unless
    `unfinished` asks for its last checkpoint. A run that was given objects (`network`, `teacher`, `data`, ...) needs
    the same ones again. Code that its spec.json names as package.module:name is imported only with `trust_code`.
    """
    if not isinstance(run, Run):
        check_folder("run", run)
    folder = run.folder if isinstance(run, Run) else Path(run)
    with torch_settings_restored():
        networks = load_run(
            folder,
            unfinished=unfinished,
            accelerator=accelerator,
            threads=threads,
            objects=Objects(**objects),
            trust_code=trust_code,
        )
        return measure(folder, networks, spec or EvaluationSpec(), progress)


def measure(
    folder: Path, networks: TrainedNetworks, spec: EvaluationSpec, progress: Progress = silent
) -> EvaluationDocument:
    """Use accuracy and every instrument of the spec; an entry is in the file before the next instrument begins.

    A setting that does not fit these networks, or an evaluation.json that is damaged, is refused before any work.
    """
    if networks.data.task.name != "classification":
        raise UserError(
            f"evaluate measures classifiers, and this run's task is {networks.data.task.name}: its metrics on the test "
            "data are in result.json and in the report."
        )
    document.read(folder)
    subject = Subject(networks, spec.batch_size, spec.workers, progress)
    instruments = [Accuracy(), *(instrument for instrument in spec.instruments if instrument.name != Accuracy.name)]
    for instrument in instruments:
        instrument.check_subject(subject)
    make_folder(folder, "--out")
    noise = networks.data.label_noise
    measured = {"model": networks.student, "head": "final", **({"label_noise": noise} if noise else {})}
    for instrument in instruments:
        entry = {"measured": measured, **to_json(_measured_by(instrument, subject))}
        evaluation = document.write(folder, networks.origin, {instrument.name: entry})
    return evaluation


def _measured_by(instrument: Instrument, subject: Subject) -> Any:
    """Return what an instrument measures; a mistake in its code is refused in one line that names the instrument."""
    try:
        return instrument.measure(subject)
    except Exception as error:
        if isinstance(error, UserError | OSError) or is_out_of_memory(error) or is_from_user_code(error):
            raise
        raise user_code_error(f"The instrument {instrument.name}", error) from error
