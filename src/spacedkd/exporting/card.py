"""The model card of an exported student: what it is, its accuracy, how to open it and how to train it again.

Every number says which epoch, head, seed and images it is of. The part between the dashes is read by the hub. Names and
texts from the run's files are shown literally: they bring no Markdown, HTML or control characters into the card.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import OURS, RunSpec
from spacedkd.data import hub
from spacedkd.data.transforms import get_augmentation
from spacedkd.exporting import onnx
from spacedkd.models.student_io import prepares_images
from spacedkd.reporting.findings import network_name
from spacedkd.reporting.formatting import count, duration, join_words, percent
from spacedkd.reporting.markdown import code, escaped, fenced
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import printable
from spacedkd.runtime.user_code import NAME, is_user_code
from spacedkd.schedule import describe_schedule

ON_THE_HUB = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "imagenet-100": "ILSVRC/imagenet-1k",
    "imagenet-1k": "ILSVRC/imagenet-1k",
}
"""names of data sets -> their names on the hub"""


@dataclass(frozen=True)
class Subject:
    """The facts that a card is written from."""

    run: Run
    config: Mapping[str, Any]
    """config.json"""
    role: str
    """whose weights these are: the student's role, or "average" """
    best: Mapping[str, Any] | None = None
    """best/measured.json, where these weights are of the best epoch and not of the last"""
    training_images: int | None = None
    parameters: int | None = None
    license: str | None = None
    repository: str | None = None
    """OWNER/NAME on the hub, if the export is pushed"""
    onnx: float | None = None
    """the largest difference of the ONNX file to torch, if there is one"""

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @property
    def is_timm(self) -> bool:
        return "architecture" in self.config

    @property
    def is_ours(self) -> bool:
        """Whether timm knows the network only after `import spacedkd.models`."""
        return OURS.fullmatch(self.config.get("architecture", "")) is not None

    @property
    def name(self) -> str:
        network = PurePath(self.spec.network.name.rpartition(":")[2]).name
        return (self.repository or f"{network}-{data_name(self.spec)}").rpartition("/")[2]

    @property
    def accuracy(self) -> float:
        """Accuracy of these weights: of the deepest head on the test images."""
        return float(self.scores["last"] if self.best is None else self.best["accuracy"]["test"])

    @property
    def epoch(self) -> str:
        """The epoch that these weights are of."""
        last, best = f"the last epoch ({self.spec.epochs:g})", self.best
        return last if best is None else f"epoch {best['epoch']:g}, the best on images held out of training"

    @property
    def scores(self) -> Mapping[str, Any]:
        """Scores of the deepest head on the test images: last, best and best_epoch."""
        scores: Mapping[str, Any] = self.run.accuracies[self.role]["test"]["final"]
        return scores


def data_name(spec: RunSpec) -> str:
    """Return the name of the data set; of one on a disk, the last part of its path."""
    if "data" in spec.objects:
        return "own-data"
    source = spec.data.source
    if is_user_code(source):
        return source.partition(":")[2]
    return source if dataset_on_hub(source) is not None else PurePath(source).name or source


def dataset_on_hub(source: str) -> str | None:
    """Return the hub's name of a data set; None for one that is not on the hub, such as a folder on this disk."""
    if source in ON_THE_HUB:
        return ON_THE_HUB[source]
    owner = source.partition("/")[0]
    if "/" not in source or owner in hub.LOCAL_FOLDERS or Path(source).exists() or not hub.NAME.fullmatch(source):
        return None
    return source.partition(":")[0]


# Preprocessing of images.


def describe_preprocessing(spec: RunSpec, config: Mapping[str, Any]) -> str:
    """Return size, scaling and normalisation in words, for readers who preprocess images without timm."""
    if spec.data.source == "mnist1d":
        return (
            "The network was shown the signals of MNIST-1D as spacedkd generates them, one channel, one row, 40 points."
        )
    if not prepares_images(spec.data):
        return "The network was shown what a dataset of its author's gave: prepare inputs in the same way."
    about = config.get("pretrained_cfg") or config
    sentences = [f"{_kind(about)}{_scaled(spec)}, pixels from 0 to 1"]
    if about.get("mean") and about.get("std"):
        mean, std = (", ".join(f"{value:.6g}" for value in about[name]) for name in ("mean", "std"))
        sentences.append(f"then normalised: minus the mean ({mean}), divided by the deviation ({std}) of each channel")
    text = "; ".join(sentences) + "."
    if spec.network.options.get("input_size") is not None:
        size = spec.data.image_size
        first = "left at their own size" if size is None else f"brought to {size} pixels"
        text += (
            f" In training they were {first} first and then scaled (bicubic) as the network wants them; "
            "whoever scales once, as timm does, gets slightly other numbers."
        )
    return text


def _kind(about: Mapping[str, Any]) -> str:
    """Return the kind of images, for instance 'RGB images of 32 x 32 pixels'."""
    size = about.get("input_size")
    if not size:
        return "Images"
    channels, height, width = size
    colours = {1: "Gray images", 3: "RGB images"}.get(channels, f"Images of {channels} channels")
    return f"{colours} of {height} x {width} pixels"


def _scaled(spec: RunSpec) -> str:
    if spec.data.image_size is None or not spec.data.augmentation:
        return ""
    fit = get_augmentation(spec.data.augmentation).fit(spec.data.image_size)
    if fit.shorter is None:
        return ", both sides scaled (bilinear)"
    to = "" if fit.shorter == fit.size else f" to {fit.shorter}"
    return f", the shorter side scaled{to} (bilinear) and the middle cut out"


# Commands that train the student again.


def how_to_train(run: Run) -> str:
    """Return the last part of a card: how to train the student again from the exported spec."""
    spec = run.spec
    places = join_words([code(field) for field in local_places(spec)] or [""])
    needs = f" It names places on its author's machine, which are others on yours: {places}." if places else ""
    return (
        f"## Train it again\n\n`spec.json` says everything that decides the numbers.\n\n{_command(spec)}\n\n"
        "The same spec gives the same bits on the same hardware, with the same number of threads and the same versions "
        f"of libraries; its fingerprint is {escaped(run.fingerprint)}.{needs}"
    )


def _command(spec: RunSpec) -> str:
    runs = _runs(spec)
    several = ""
    if len(runs) > 1:
        several = (
            "It continues shorter runs where they had ended, or were stopped (`extends` in spec.json says at which "
            "turn). They are trained one after the other.\n\n"
        )
    if spec.objects:
        names = ", ".join(code(given["name"]) for given in spec.objects.values())
        needs = f"The run was given objects in Python ({names}), which it needs again:"
        return f"{several}{needs}\n\n{fenced(_in_python(spec, runs), 'python')}"
    return f"{several}{fenced(_command_lines(spec, runs))}"


def _runs(spec: RunSpec) -> list[tuple[str, str]]:
    """Return folder and epochs of the runs to train, each of which extends the one before it.

    An exact extension has the bits of a single run, so it is trained as one.
    """
    before = [_plain(part.epochs) for part in spec.extends if part.how != "exact"]
    return [*((f"runs/again-{epochs}ep", epochs) for epochs in before), ("runs/again", _plain(spec.epochs))]


def _plain(epochs: float) -> str:
    return str(epochs).removesuffix(".0")


def _command_lines(spec: RunSpec, runs: list[tuple[str, str]]) -> str:
    trusted = " --trust-code" if any(NAME.fullmatch(text) for text in _texts(to_json(spec))) else ""
    (folder, epochs), *longer = runs
    first = f"spacedkd train --spec spec.json --out {folder}"
    if spec.teacher_path is not None:  # its teacher was trained elsewhere, to the same bits
        first += " --set teacher_path=null"
    if spec.extends:
        first += " --set 'extends=[]'"
    if longer:
        first += f" --epochs {epochs}"
    lines = [first]
    for (before, _), (folder, epochs) in zip(runs, longer, strict=False):
        lines.append(f"spacedkd train --extend {before} --epochs {epochs} --out {folder}")
    return "\n".join(line + trusted for line in lines)


def _in_python(spec: RunSpec, runs: list[tuple[str, str]]) -> str:
    given = ", ".join(f"{name}=..." for name in spec.objects)
    if not spec.extends:
        return f'from spacedkd import read_spec, train\n\ntrain(read_spec("spec.json"), "runs/again", {given})'
    lines = ["from dataclasses import replace\n", "from spacedkd import read_spec, train\n"]
    lines.append('spec = replace(read_spec("spec.json"), extends=())')
    extend = ""
    for folder, epochs in runs:
        lines.append(f'train(replace(spec, epochs={epochs}), "{folder}", {extend}{given})')
        extend = f'extend="{folder}", '
    return "\n".join(lines)


def local_places(spec: RunSpec) -> dict[str, str]:
    """Return the fields of a spec that name an absolute path on this machine, with their values."""
    leaves = _leaves(to_json(spec))
    return {field: value for field, value in leaves if isinstance(value, str) and PurePath(value).is_absolute()}


def _leaves(plain: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    pairs = plain.items() if isinstance(plain, Mapping) else enumerate(plain) if isinstance(plain, list) else None
    if pairs is None:
        yield above, plain
        return
    for key, value in pairs:
        yield from _leaves(value, f"{above}.{key}" if above else str(key))


def _texts(plain: Any) -> Iterator[str]:
    return (value for _, value in _leaves(plain) if isinstance(value, str))


# The card.

_SHOWN_CLASSES = 20
_PAPER = (
    "Spaced KD: *Right Time to Learn: Promoting Generalization via Bio-inspired Spacing Effect in Knowledge "
    "Distillation*, ICML 2025."
)


def model_card(subject: Subject) -> str:
    """Return the text of README.md."""
    front = yaml.safe_dump(metadata(subject), sort_keys=False, allow_unicode=True)
    parts = [part(subject) for part in (_title, _numbers, _opening, _onnx, _preprocessing, _classes)]
    card = "\n\n".join([f"---\n{front}---", *(text for text in parts if text), how_to_train(subject.run)]) + "\n"
    return "\n".join(map(printable, card.split("\n")))


def metadata(subject: Subject) -> dict[str, Any]:
    """Return the front matter of a card, which the hub reads."""
    spec, dataset = subject.spec, dataset_on_hub(subject.spec.data.source)
    taught = [] if spec.method.name == "none" else ["knowledge-distillation", spec.method.name.replace(":", ".")]
    fields: dict[str, Any] = {} if subject.license is None else {"license": subject.license}
    fields["library_name"] = "timm" if subject.is_timm else "spacedkd"
    fields["pipeline_tag"] = "image-classification"
    fields["tags"] = ["image-classification", *(["timm"] if subject.is_timm else []), "spacedkd", *taught]
    fields |= {} if dataset is None else {"datasets": [dataset]}
    fields["metrics"] = ["accuracy"]
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
    return fields | {"model-index": [{"name": subject.name, "results": [result]}]}


def _title(subject: Subject) -> str:
    spec, run = subject.spec, subject.run
    schedule = None if run.leader is None else describe_schedule(spec.schedule)
    whose = "The average of a student's weights" if subject.role == "average" else "A student"
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
        yield "the student itself, last epoch", _percent(run.accuracies[student]["test"]["final"]["last"])
    if run.leader is not None and run.leader in run.accuracies:
        yield f"its {escaped(run.leader)}, last epoch", _percent(run.accuracies[run.leader]["test"]["final"]["last"])
    yield "head", "the deepest (`final`), the only one that is exported"
    yield "test images", count(run.plan["test_images"])
    if subject.training_images is not None:
        wrong = f", {100 * spec.data.label_noise:g} % of them with a wrong label" if spec.data.label_noise else ""
        yield "training images", f"{count(subject.training_images)}{wrong}"
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
    repository = subject.repository or "OWNER/NAME"
    if not subject.is_timm:
        return (
            "## Open it\n\nThe network is its author's own: `config.json` names the function that makes it "
            "(`made_by`), which you need.\n\n```python\nfrom spacedkd import load_student\n\n"
            'model = load_student("FOLDER", network=that_function)  # a folder with these files\n```'
        )
    ours = subject.is_ours
    first = "import spacedkd.models  # makes this network known to timm\n" if ours else ""
    note = " The network is one of spacedkd's own, so `import spacedkd.models` comes first." * ours
    opened = (
        f'model = timm.create_model("hf-hub:{repository}", pretrained=True).eval()\n'
        '# or from a folder: timm.create_model("local-dir:FOLDER", pretrained=True)\n'
    )
    return (
        f"## Open it\n\nIn timm.{note}\n\n```python\n{first}import timm\n{_image_import(subject)}\n{opened}"
        f"{_image_use(subject)}```\n\n"
        f"In transformers (tried with 5.22), which opens timm's networks as they are:\n\n```python\n{first}"
        "from transformers import AutoModelForImageClassification\n\n"
        f'model = AutoModelForImageClassification.from_pretrained("{repository}")  # or a folder\n```'
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
    """Return the name of Pillow for such images."""
    size: Sequence[int] = (subject.config.get("pretrained_cfg") or {}).get("input_size") or (0,)
    return {1: "L", 3: "RGB"}.get(size[0]) if prepares_images(subject.spec.data) else None


def _onnx(subject: Subject) -> str:
    if subject.onnx is None:
        return ""
    return (
        f"## ONNX\n\n`{onnx.NAME}` takes `images` [batch, channels, height, width], float32, prepared and "
        "normalised as below, and gives `logits` [batch, classes]; its metadata holds mean, deviation and the names of "
        f"the classes. On random images its logits differ from torch's by {subject.onnx:.1g} at most."
    )


def _preprocessing(subject: Subject) -> str:
    return f"## What it wants to see\n\n{describe_preprocessing(subject.spec, subject.config)}"


def _classes(subject: Subject) -> str:
    names = subject.config.get("label_names") or []
    if not names:
        return ""
    more = f", the first {_SHOWN_CLASSES} of which are" if len(names) > _SHOWN_CLASSES else ""
    listed = json.dumps(names[:_SHOWN_CLASSES], ensure_ascii=False)
    order = f"{len(names)}, in the order of the logits (`label_names` in config.json){more}"
    return f"## Classes\n\n{order}:\n\n{fenced(listed)}"
