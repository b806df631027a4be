"""The model card: what the student is, how good it was measured to be, how it is opened and how it is trained again.

Every number says which epoch, head, seed and images it is of. The part between the dashes is read by the hub. Names and
texts from the run's files are shown as they stand: they bring no Markdown, HTML or control characters into the card.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from spacedkd.errors import printable
from spacedkd.exporting import onnx_file
from spacedkd.exporting.again import again
from spacedkd.exporting.preparation import in_words
from spacedkd.exporting.subject import Subject, data_name, dataset_on_hub
from spacedkd.models.description import knows_images
from spacedkd.report.numbers import count, duration, percent
from spacedkd.report.reproduced.texts import escaped, fenced
from spacedkd.report.words import network_name
from spacedkd.spec_words import describe_schedule

_SHOWN_CLASSES = 20
_PAPER = (
    "Spaced KD: *Right Time to Learn: Promoting Generalization via Bio-inspired Spacing Effect in Knowledge "
    "Distillation*, ICML 2025."
)


def model_card(subject: Subject) -> str:
    """README.md of a model on the hub."""
    front = yaml.safe_dump(metadata(subject), sort_keys=False, allow_unicode=True)
    parts = [part(subject) for part in (_title, _numbers, _opening, _onnx, _preparation, _classes)]
    card = "\n\n".join([f"---\n{front}---", *(text for text in parts if text), again(subject.run)]) + "\n"
    return "\n".join(map(printable, card.split("\n")))


def metadata(subject: Subject) -> dict[str, Any]:
    """What the hub reads of a card."""
    spec, dataset = subject.spec, dataset_on_hub(subject.spec.data.source)
    taught = [] if spec.method.name == "none" else ["knowledge-distillation", spec.method.name.replace(":", ".")]
    named: dict[str, Any] = {} if subject.license is None else {"license": subject.license}
    named["library_name"] = "timm" if subject.is_timm else "spacedkd"
    named["pipeline_tag"] = "image-classification"
    named["tags"] = ["image-classification", *(["timm"] if subject.is_timm else []), "spacedkd", *taught]
    named |= {} if dataset is None else {"datasets": [dataset]}
    named["metrics"] = ["accuracy"]
    metric = {
        "type": "accuracy",
        "value": round(subject.accuracy, 6),
        "name": f"top-1 accuracy, {'last' if subject.best is None else 'best'} epoch, deepest head, seed {spec.seed}, "
        f"{subject.run.plan['test_images']} test images",
    }
    result = {
        "task": {"type": "image-classification", "name": "Image classification"},
        "dataset": {"type": dataset or data_name(spec), "name": data_name(spec), "split": "test"},
        "metrics": [metric],
    }
    return named | {"model-index": [{"name": subject.name, "results": [result]}]}


def _title(subject: Subject) -> str:
    spec, run = subject.spec, subject.run
    schedule = None if run.leader is None else describe_schedule(spec.schedule)
    whose = "The moving average of a student" if subject.role == "average" else "A student"
    taught = ", ".join(word for word in (f"method {spec.method.name}", schedule) if word)
    teacher = ""
    if spec.teacher is not None and spec.teacher != spec.network and spec.method.name != "none":
        teacher = f" Its teacher was {escaped(network_name(spec.teacher))}."
    if schedule is not None and schedule not in ("online", "offline"):
        teacher += f" {_PAPER}"
    size = "" if subject.parameters is None else f", {count(subject.parameters)} parameters"
    return (
        f"# {escaped(subject.name)}\n\n{whose} trained with spacedkd ({escaped(taught)}) on "
        f"{escaped(data_name(spec))}: {escaped(network_name(spec.network))}{size}.{teacher}"
    )


def _numbers(subject: Subject) -> str:
    rows = "\n".join(f"| {what} | {number} |" for what, number in _rows(subject))
    return f"## How good it is\n\n| | |\n|---|---|\n{rows}"


def _rows(subject: Subject) -> Iterator[tuple[str, str]]:
    run, spec, scores = subject.run, subject.spec, subject.scores
    chosen = {"test": "the test images themselves, so it flatters", "holdout": "images held out of training"}
    yield f"top-1 accuracy after {subject.epoch}, which these weights are of", _percent(subject.accuracy)
    if subject.best is not None:
        yield f"last epoch ({spec.epochs:g}); not these weights", _percent(scores["last"])
    elif scores["best_epoch"] != spec.epochs:
        best = f"best epoch ({scores['best_epoch']:g}), chosen on {chosen[run.best_chosen_on]}; not these weights"
        yield best, _percent(scores["best"])
    student = run.roles[-1]
    if subject.role == "average":
        yield "the student itself, last epoch", _percent(run.accuracy[student]["test"]["final"]["last"])
    if run.leader is not None and run.leader in run.accuracy:
        yield f"its {escaped(run.leader)}, last epoch", _percent(run.accuracy[run.leader]["test"]["final"]["last"])
    yield "head", "the deepest (`final`), the only one that is exported"
    yield "test images", count(run.plan["test_images"])
    if subject.training_images is not None:
        yield "training images", count(subject.training_images)
    yield "seeds", f"one, seed {spec.seed}"
    yield "precision it was trained and measured in", escaped(spec.precision)
    cost = run.cost
    passes = f"{count(cost['forward_images'])} images forward, {count(cost['backward_images'])} backward"
    where = escaped(", ".join(f"{name} {value}" for name, value in run.environment.items()))
    whose = " by all who learned" if run.leader is not None else ""
    yield (
        "what it cost",
        f"{count(cost['updates'])} updates{whose}, {passes}, {duration(run.seconds)} ({where})",
    )


def _percent(part: float) -> str:
    return f"{percent(part)} %"


def _opening(subject: Subject) -> str:
    place = subject.repository or "OWNER/NAME"
    if not subject.is_timm:
        return (
            "## Open it\n\nThe network is its author's own: `config.json` names the function that makes it "
            "(`made_by`), which you need.\n\n```python\nfrom spacedkd import load_student\n\n"
            'model = load_student("FOLDER", network=that_function)  # a folder with these files\n```'
        )
    ours = subject.is_ours
    first = "import spacedkd.models  # makes this network known to timm\n" if ours else ""
    known = " The network is one of spacedkd's small-image ResNets, so `import spacedkd.models` comes first." * ours
    opened = (
        f'model = timm.create_model("hf-hub:{place}", pretrained=True).eval()\n'
        '# or from a folder: timm.create_model("local-dir:FOLDER", pretrained=True)\n'
    )
    return (
        f"## Open it\n\nIn timm.{known}\n\n```python\n{first}import timm\n{_image_import(subject)}\n{opened}"
        f"{_image_use(subject)}```\n\n"
        f"In transformers (tried with 5.22), which opens timm's networks as they are:\n\n```python\n{first}"
        "from transformers import AutoModelForImageClassification\n\n"
        f'model = AutoModelForImageClassification.from_pretrained("{place}")  # or a folder\n```'
    )


def _image_import(subject: Subject) -> str:
    return "from PIL import Image\n" if _mode(subject) else ""


def _image_use(subject: Subject) -> str:
    if not (mode := _mode(subject)):
        return ""
    return (
        "prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)\n"
        f'logits = model(prepare(Image.open("IMAGE").convert("{mode}"))[None])\n'
        'print(model.pretrained_cfg["label_names"][logits.argmax()])\n'
    )


def _mode(subject: Subject) -> str | None:
    """What Pillow calls such images."""
    size: Sequence[int] = (subject.known.get("pretrained_cfg") or {}).get("input_size") or (0,)
    return {1: "L", 3: "RGB"}.get(size[0]) if knows_images(subject.spec.data) else None


def _onnx(subject: Subject) -> str:
    if subject.onnx is None:
        return ""
    return (
        f"## ONNX\n\n`{onnx_file.NAME}` takes `images` [batch, channels, height, width], float32, prepared and "
        "normalised as below, and gives `logits` [batch, classes]; its metadata holds mean, deviation and the names of "
        f"the classes. On random images its logits differ from torch's by {subject.onnx:.1g} at most."
    )


def _preparation(subject: Subject) -> str:
    return f"## What it wants to see\n\n{in_words(subject.spec, subject.known)}"


def _classes(subject: Subject) -> str:
    names = subject.known.get("label_names") or []
    if not names:
        return ""
    more = f", the first {_SHOWN_CLASSES} of which are" if len(names) > _SHOWN_CLASSES else ""
    listed = json.dumps(names[:_SHOWN_CLASSES], ensure_ascii=False)
    said = f"{len(names)}, in the order of the logits (`label_names` in config.json){more}"
    return f"## Classes\n\n{said}:\n\n{fenced(listed)}"
