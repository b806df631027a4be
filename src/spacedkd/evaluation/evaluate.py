"""All instruments on one trained network."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from spacedkd.config.objects import Objects
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import check_folder
from spacedkd.data.dataset import Items
from spacedkd.data.images import Encoded, Images
from spacedkd.data.splits import evenly_by_class
from spacedkd.data.stream import Batch, evaluation_batches
from spacedkd.evaluation import accuracy, adversarial, corruptions, curvature, document, weight_noise
from spacedkd.evaluation.corruptions import CorruptedImages
from spacedkd.evaluation.frozen import Advance, Batches
from spacedkd.evaluation.settings import CURVATURE_IMAGES, NOISE_IMAGES, EvaluationSpec
from spacedkd.runs.folder import make_folder
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import UserError
from spacedkd.training.trained_models import TrainedModels, load_run

Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""shows work with this title and so many parts; what it gives is told of those that are done"""


def silent(_: str, __: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None)


def evaluate(
    run: Run | Path | str,
    plan: EvaluationSpec | None = None,
    *,
    unfinished: bool = False,
    accelerator: str | None = None,
    threads: int | None = None,
    trust_code: bool = False,
    progress: Progress = silent,
    **objects: Any,
) -> dict[str, Any]:
    """Measure a run's networks as the plan says, accuracy alone unless told more; also written to its evaluation.json.

    A run that was given objects (`network`, `teacher`, `data`, ...) needs the same ones again. Code that its spec.json
    names as package.module:name is imported only with `trust_code`.
    """
    if not isinstance(run, Run):
        check_folder("run", run)
    folder = run.folder if isinstance(run, Run) else Path(run)
    saved = load_run(folder, unfinished, accelerator, threads, Objects(**objects), trust_code)
    return measure(folder, saved, plan or EvaluationSpec(), progress)


def measure(folder: Path, saved: TrainedModels, plan: EvaluationSpec, progress: Progress = silent) -> dict[str, Any]:
    """Use every instrument of the plan; what one found is in the folder's evaluation.json before the next begins.

    What is wrong with the plan, or with an evaluation.json that is there, is said before any work is done.
    """
    found: dict[str, Any] = document.read(folder) or {}
    test, given = _some(saved, saved.data.test, "limit", plan.limit), (saved, plan, progress)
    instruments: dict[str, Callable[[], Any]] = {"accuracy": partial(_accuracy, *given)}
    if plan.corruptions:
        instruments["corruptions"] = partial(_corruptions, of_images(test, "Corruptions"), *given)
    if plan.attacks:
        instruments["adversarial"] = partial(_adversarial, of_images(test, "Attacks"), *given)
    if (plan.flatness or plan.hessian) and not isinstance(saved.data.info.sample, Tensor):
        raise UserError("Flatness and curvature are measured where a network's input is one tensor: leave them out.")
    if plan.flatness:
        instruments["weight_noise"] = partial(_weight_noise, _training(saved, plan, NOISE_IMAGES), *given)
    if plan.hessian:
        instruments["curvature"] = partial(_curvature, _training(saved, plan, CURVATURE_IMAGES), *given)
    make_folder(folder, "--out")
    for name, use in instruments.items():
        result = {"measured": {"model": saved.student, "head": "final"}, **to_json(use())}
        found = document.write(folder, saved.origin, {name: result})
    return found


Part = Images | Encoded | Items


def of_images(part: Part, what: str) -> Images | Encoded:
    """Images whose pixels can be changed; a dataset of somebody's own shows its items as it likes."""
    if isinstance(part, Items):
        raise UserError(f"{what} change the pixels of images, and this run has a dataset of its own: leave them out.")
    return part


def _accuracy(saved: TrainedModels, plan: EvaluationSpec, progress: Progress) -> dict[str, Any]:
    parts, classes = saved.data.evaluated_splits(), saved.data.info.classes
    total = len(saved.models) * sum(len(part) for part in parts.values())
    with progress("accuracy", total) as advance:

        def scored(model: str, images: Part) -> accuracy.Scores:
            leaders = [name for name in saved.models if name not in (saved.student, "average")]
            others = {name: saved.predict(name) for name in leaders} if model == saved.student else {}
            batches = _shown(saved, images, plan, advance)
            try:
                return accuracy.score(saved.predict(model), saved.head_names(model), batches, len(classes), others)
            except accuracy.NotFinite as error:
                row = images.first_not_finite() if isinstance(images, Items) else None
                cause = "" if row is None else f" Item {row} of the dataset holds NaN or infinity."
                raise UserError(f"The {model} cannot be measured: {error}{cause}") from None

        found = {model: {part: scored(model, images) for part, images in parts.items()} for model in saved.models}
    return {"class_names": list(classes), "models": found}


def _corruptions(
    test: Images | Encoded, saved: TrainedModels, plan: EvaluationSpec, progress: Progress
) -> corruptions.Corruptions:
    kept = CorruptedImages(test, plan.cache)
    count, names, severities = len(test.labels), plan.corruptions, plan.severities
    missing = len(kept.missing(names, severities))
    if missing:
        with progress(f"corrupting images ({missing} of {len(names) * len(severities)} ways)", missing * count) as tell:
            kept.make(names, severities, advance=tell)
    with progress("corruptions", (1 + len(names) * len(severities)) * count) as advance:

        def batches(name: str, severity: int) -> Iterator[Batch]:
            for batch in kept.batches(name, severity, plan.batch_size):
                yield saved.to_device(batch)
                advance(len(batch.labels))

        enlarged = corruptions.enlargement(*test.shape[1:])
        predict, heads, clean = saved.predict(), saved.head_names(), _shown(saved, test, plan, advance)
        return corruptions.corruptions(predict, heads, clean, batches, names, severities, count, enlarged)


def _adversarial(
    test: Images | Encoded, saved: TrainedModels, plan: EvaluationSpec, progress: Progress
) -> adversarial.Adversarial:
    def batches() -> Iterator[adversarial.Pixels]:
        for rows in torch.arange(len(test.labels)).split(plan.batch_size):
            layout = torch.channels_last if saved.channels_last else torch.contiguous_format
            pixels = test.resized(rows).to(saved.device, memory_format=layout)
            yield pixels, test.labels[rows].to(saved.device), rows

    with progress("adversarial", adversarial.passes(plan.attacks) * len(test.labels)) as advance:
        predict = saved.predict_deepest()
        return adversarial.adversarial(predict, test.normalise, batches(), plan.attacks, advance=advance)


def _weight_noise(
    train: Batches, saved: TrainedModels, plan: EvaluationSpec, progress: Progress
) -> weight_noise.WeightNoise:
    predict = saved.predict_deepest()
    with progress("weight noise", 1 + (len(plan.noise) + len(plan.relative_noise)) * plan.draws) as advance:
        return weight_noise.weight_noise(
            saved.deepest(),
            train,
            predict=lambda images: predict(images)[0].logits,
            absolute=plan.noise,
            relative=plan.relative_noise,
            draws=plan.draws,
            advance=advance,
        )


def _curvature(train: Batches, saved: TrainedModels, plan: EvaluationSpec, progress: Progress) -> dict[str, Any]:
    most = plan.most_products * (len(curvature.USED) + 1)
    with progress("curvature (at most)", most) as advance:
        found = curvature.curvature(
            saved.student_in_float32(), train, error=plan.error, most_products=plan.most_products, advance=advance
        )
        advance(most - found.largest.products - sum(one.products for one in found.traces.values()))
    return {**to_json(found), "trace": to_json(found.trace)}


def _training(saved: TrainedModels, plan: EvaluationSpec, usual: int) -> Batches:
    """Passes over the training images as they are, not varied; left open, at least one of each class is among them."""
    usual = max(usual, len(saved.data.info.classes))
    train = _some(saved, saved.data.train, "train_images", usual if plan.train_images is None else plan.train_images)
    return lambda: ((cast(Tensor, batch.inputs), batch.labels) for batch in _shown(saved, train, plan))


def _shown(
    saved: TrainedModels, images: Part, plan: EvaluationSpec, advance: Advance = lambda _: None
) -> Iterator[Batch]:
    for batch in evaluation_batches(images, plan.batch_size, plan.workers):
        yield saved.to_device(batch)
        advance(len(batch.labels))


def _some(saved: TrainedModels, images: Part, name: str, limit: int | None) -> Part:
    """At most `limit` images, evenly from all classes; of somebody's own dataset, evenly from beginning to end."""
    if limit is None or limit >= len(images):
        return images
    classes = len(saved.data.info.classes)
    if limit < classes:
        raise UserError(f"{name} must be at least {classes}, one image of each class; got {limit}.")
    if isinstance(images, Items):
        return images.subset(torch.arange(limit) * len(images) // limit)
    return images.subset(evenly_by_class(images.labels, limit, classes))
