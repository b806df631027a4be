"""What is exported opens elsewhere, sees what the student saw, and says of itself what the run measured."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_model_data_config

from spacedkd import DataSpec, Duration, RunSpec, UserError, export, load_student, read_run, train
from spacedkd.cli import main
from spacedkd.data import sources
from spacedkd.data.images import to_bytes
from spacedkd.data.transforms import get_augmentation
from spacedkd.exporting import onnx, request
from spacedkd.exporting.card import Subject, data_name, dataset_on_hub, local_places, model_card
from spacedkd.models.student_io import timm_preprocessing
from tests.cli.test_bad_input import refused
from tests.conftest import assert_same_bits
from tests.data.on_disk import picture


@pytest.fixture(scope="module")
def exported(trained: Path) -> Path:
    main(["export", str(trained / "run"), "--to", str(trained / "out"), "--license", "cc-by-4.0"])
    return trained / "out"


def test_a_student_as_timm_opens_it_is_as_good_as_the_run_says(trained: Path, exported: Path) -> None:
    """From the pictures' files, with timm's own preparation; nothing of ours is in between but the network's name."""
    assert {path.name for path in exported.iterdir()} == {"README.md", "config.json", "model.safetensors", "spec.json"}
    assert_same_bits(load_file(exported / "model.safetensors"), load_file(trained / "run/student/model.safetensors"))
    assert (exported / "spec.json").read_bytes() == (trained / "run/spec.json").read_bytes()
    assert json.loads((exported / "config.json").read_text())["pretrained_cfg"]["license"] == "cc-by-4.0"
    model = timm.create_model(f"local-dir:{exported}", pretrained=True).eval()
    prepare = create_transform(**resolve_model_data_config(model), is_training=False)
    names = model.pretrained_cfg["label_names"]
    files = sorted((trained / "pictures/val").glob("*/*.png"))
    with torch.no_grad():
        said = [names[model(prepare(Image.open(file))[None]).argmax()] for file in files]
    right = sum(name == file.parent.name for name, file in zip(said, files, strict=True))
    assert right == round(read_run(trained / "run").score() * len(files))


def test_the_card_says_what_was_measured(trained: Path, exported: Path) -> None:
    run = json.loads((trained / "run/result.json").read_text())
    card = ModelCard.load(exported / "README.md")  # as the hub's own library reads it
    (result,) = card.data.eval_results
    student, teacher = (run["accuracy"][role]["test"]["final"] for role in ("student", "teacher"))
    assert (result.metric_type, result.metric_value) == ("accuracy", round(student["last"], 6))
    assert (result.dataset_name, result.dataset_split) == ("pictures", "test")
    assert result.metric_name == "top-1 accuracy, last epoch, deepest head, seed 0, 24 test images"
    assert (card.data.license, card.data.library_name, card.data.metrics) == ("cc-by-4.0", "timm", ["accuracy"])
    assert {"image-classification", "timm", "knowledge-distillation"} <= {*card.data.tags}
    text = card.text
    assert f"which these weights are of | {100 * student['last']:.1f} % |" in text
    assert f"its teacher, last epoch | {100 * teacher['last']:.1f} % |" in text
    assert f"{run['cost']['updates']} updates by all who learned" in text
    assert "| test images | 24 |" in text
    assert "| training images | 24 |" in text
    assert '["cat", "dog", "eel"]' in text
    assert "spacedkd train --spec spec.json --out runs/again" in text
    assert "which are others on yours: `data.source`." in text
    assert str(trained) not in text
    numbers = [[float(one) for one in said.split(", ")] for said in re.findall(r"\((\d[^()]*, [^()]*)\)", text)]
    pixels = load(trained)
    np.testing.assert_allclose(numbers, [pixels.mean((0, 1)), pixels.std((0, 1))], rtol=1e-5)
    assert "RGB images of 12 x 12 pixels, the shorter side scaled (bilinear) and the middle cut out" in text


def load(trained: Path) -> Any:
    """All training pixels in 0 .. 1, rows of RGB: pictures as a network is shown them."""
    fit = get_augmentation("small").fit(12)
    files = sorted((trained / "pictures/train").glob("*/*.png"))
    return np.concatenate([np.asarray(fit(Image.open(file))) / 255 for file in files])


def test_what_the_card_says_to_type_works(exported: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_timm, in_transformers = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    file = next((trained / "pictures/val").glob("*/*.png"))
    typed = in_timm.replace("hf-hub:OWNER/NAME", f"local-dir:{exported}").replace('"IMAGE"', repr(str(file)))
    there: dict[str, Any] = {}
    opened: dict[str, Any] = {}
    exec(typed, there)
    assert capsys.readouterr().out.strip() in ("cat", "dog", "eel")
    exec(in_transformers.replace("OWNER/NAME", str(exported)), opened)
    images, wrapper = torch.randn(2, 3, 12, 12), opened["model"].eval()
    with torch.no_grad():
        assert torch.equal(wrapper(images).logits, there["model"](images))
    assert wrapper.config.id2label == {0: "cat", 1: "dog", 2: "eel"}


def test_the_best_epoch_has_its_own_numbers(tmp_path: Path, tiny: RunSpec) -> None:
    spec = replace(tiny, data=replace(tiny.data, holdout=0.3), evaluate_every=Duration(1, "st"), method="none")
    run = train(spec, tmp_path / "run")
    chosen = json.loads((tmp_path / "run/best/measured.json").read_text())
    assert chosen["epoch"] < 3, "it is another epoch than the last"
    main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out"), "--best"])
    assert_same_bits(*(load_file(tmp_path / place / "model.safetensors") for place in ("run/best", "out")))
    card = (tmp_path / "out/README.md").read_text()
    test = sources.load(spec.data).test
    about = json.loads((tmp_path / "out/config.json").read_text())["pretrained_cfg"]
    with torch.no_grad():
        logits = load_student(tmp_path / "out").eval()((test.pixels / 255 - about["mean"][0]) / about["std"][0])
    right = (logits.argmax(1) == test.labels).double().mean().item()
    value = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"][0]["metrics"][0]["value"]
    assert value == pytest.approx(right, abs=1e-6)
    assert f"| {100 * chosen['accuracy']['test']:.1f} % |" in card
    assert f"last epoch (3); not these weights | {100 * run.score():.1f} % |" in card
    with pytest.raises(UserError, match="export one of them"):
        export(tmp_path / "run", tmp_path / "new", best=True, average=True)
    train(replace(tiny, method="none", epochs=0.2), tmp_path / "without")
    with pytest.raises(UserError, match="trained without data.holdout"):
        export(tmp_path / "without", tmp_path / "new", best=True)


@pytest.mark.parametrize(
    ("augmentation", "size"), [("imagenet", 64), ("imagenet", 50), ("vit", 48), ("small", 32), ("cifar", 32)]
)
def test_timm_prepares_images_as_they_were_measured(augmentation: str, size: int) -> None:
    data = DataSpec("photos", augmentation=augmentation, image_size=size)
    described = timm_preprocessing(data, RunSpec().network, (size, size))
    prepare = create_transform((3, size, size), mean=(0, 0, 0), std=(1, 1, 1), **described)
    image = picture(7, 90, 70)
    ours = to_bytes(get_augmentation(augmentation).fit(size)(image))
    assert torch.equal((255 * prepare(image)).round().to(torch.uint8), ours)


def test_onnx_says_what_torch_says(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnxruntime

    main(["export", str(trained / "run"), "--to", str(tmp_path / "out"), "--onnx", "--average"])
    difference = re.search(r"the largest difference of their logits is (\S+)", capsys.readouterr().out)
    assert difference is not None
    assert 0 <= float(difference[1]) < 1e-5
    average = load_file(trained / "run/average/model.safetensors")
    assert_same_bits(load_file(tmp_path / "out/model.safetensors"), average)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    images = torch.randn(5, 3, 12, 12)
    with torch.no_grad():
        ours = load_student(trained / "run/average")(images)
    (theirs,) = session.run(["logits"], {"images": images.numpy()})
    np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-5)
    said = session.get_modelmeta().custom_metadata_map
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert json.loads(said["labels"]) == ["cat", "dog", "eel"]
    assert json.loads(said["mean"]) == config["pretrained_cfg"]["mean"]
    assert "normalised" in said["input"]
    card = (tmp_path / "out/README.md").read_text()
    assert "The average of a student" in card
    assert f"On random images its logits differ from torch's by {float(difference[1]):.1g} at most." in card
    accuracy = read_run(trained / "run").accuracies["average"]["test"]["final"]["last"]
    front = yaml.safe_load(card.split("---")[1])
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == round(accuracy, 6)

    with pytest.raises(UserError, match="The network as ONNX differs from torch by"):  # the student is another network
        onnx._compare(load_student(trained / "run"), (3, 12, 12), tmp_path / "out/model.onnx")


OWN = """
from pathlib import Path
Path("imported").write_text("")
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, images):
        features = self.inside(images.flatten(1)).relu()
        return self.last(features), features
"""


def test_a_network_of_ones_own_is_imported_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_pair.py").write_text(OWN)
    short = "--data digits --train-limit 40 --epochs 1 --batch-size 8 --precision 32-true --threads 1".split()
    main(["train", "--network", "own_pair:Pair", *short, "--method", "none", "--out", "run"])
    (tmp_path / "imported").unlink()
    monkeypatch.delitem(__import__("sys").modules, "own_pair")
    main(["export", "run", "--to", "plain"])
    card = (tmp_path / "plain/README.md").read_text()
    assert "library_name: spacedkd" in card
    assert "load_student" in card
    assert "--out runs/again --trust-code" in card
    assert "names code, 'own_pair:Pair'" in refused(["export", "run", "--to", "refused", "--onnx"], capsys)
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "refused").exists()
    main(["export", "run", "--to", "trusted", "--onnx", "--trust-code"])
    assert (tmp_path / "trusted/model.onnx").exists()


def test_what_cannot_be_exported_is_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, new = trained / "run", tmp_path / "new"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/README.md").write_text("mine")
    assert str(tmp_path / "full") in refused(["export", str(run), "--to", str(tmp_path / "full")], capsys)
    assert (tmp_path / "full/README.md").read_text() == "mine"
    damaged = Path(shutil.copytree(run, tmp_path / "run"))
    weights = damaged / "student/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    assert "was changed or damaged" in refused(["export", str(damaged), "--to", str(new)], capsys)
    weights.unlink()
    assert "There is no student" in refused(["export", str(damaged), "--to", str(new)], capsys)
    result = json.loads((run / "result.json").read_text())
    del result["accuracy"]["average"]
    (damaged / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="has no average"):
        export(damaged, new, average=True)
    monkeypatch.setattr(request, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'spacedkd\[onnx\]'"):
        export(run, new, onnx=True)
    assert not new.exists()


def test_what_data_is_called() -> None:
    spec = RunSpec(data=DataSpec("/home/me/birds"))
    assert (data_name(spec), dataset_on_hub("/home/me/birds")) == ("birds", None)
    assert local_places(replace(spec, teacher_path="/mnt/t")) == {
        "data.source": "/home/me/birds",
        "teacher_path": "/mnt/t",
    }
    assert dataset_on_hub("cifar100") == "uoft-cs/cifar100"
    spec = RunSpec(data=DataSpec("owner/photos:small"))
    assert (data_name(spec), dataset_on_hub("owner/photos:small")) == ("owner/photos:small", "owner/photos")
    assert dataset_on_hub("data/photos") is None


HOSTILE = (
    "<img src=x onerror=alert(1)>|`` ` ``` [a](javascript:b) *c* __d__ &lt; \\ \n\n# head\n| x |\n\x1b[2J\u202e---"
)
"""text that would be a picture, code, a link, emphasis, a heading, a row of a table, or obeyed by a terminal"""


MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


def test_nothing_in_the_files_of_a_run_becomes_markup_of_its_card(trained: Path) -> None:
    run = read_run(trained / "run")
    own = {"name": HOSTILE, "digest": "0" * 16}
    spec = replace(
        run.spec,
        label=HOSTILE,
        network=replace(run.spec.network, name=f"x/{HOSTILE}", options={HOSTILE: HOSTILE}),
        teacher=replace(run.spec.network, name=HOSTILE),
        method=replace(run.spec.method, name=HOSTILE, options={HOSTILE: f"/{HOSTILE}"}),
        data=replace(run.spec.data, source=f"/{HOSTILE}"),
        objects={HOSTILE: own},
    )
    leader = {HOSTILE: run.accuracies["teacher"], **run.accuracies}
    doctored = replace(
        run,
        spec=spec,
        environment={HOSTILE: HOSTILE, "torch": ["<b>", HOSTILE]},
        fingerprint=HOSTILE,
        accuracies=leader,
        plan={**run.plan, "roles": [HOSTILE, "student"]},
    )
    known = {"architecture": HOSTILE, "label_names": [HOSTILE, "```", "<b>"]}
    card = model_card(Subject(doctored, known, "student"))
    assert "\x1b" not in card
    assert "\u202e" not in card
    _, front, body = re.split("^---$", card, maxsplit=2, flags=re.MULTILINE)
    assert yaml.safe_load(front)["library_name"] == "timm"
    parsed = MARKDOWN.parse(body)
    every = [inner for token in parsed for inner in (token, *(token.children or ()))]
    assert not {"html_inline", "html_block", "image", "link_open", "strong_open", "hr"} & {one.type for one in every}
    heads = [parsed[place + 1].content for place, one in enumerate(parsed) if one.type == "heading_open"]
    assert heads[1:] == ["How good it is", "Open it", "What it wants to see", "Classes", "Train it again"]
    texts = "".join(one.content for one in every if one.type in ("text", "text_special", "code_inline"))
    assert texts.count("<img src=x onerror=alert(1)>") >= 8
    usual = MARKDOWN.parse(model_card(Subject(run, {"architecture": "resnet18_small"}, "student")))
    assert [one.type for one in parsed].count("td_open") == [one.type for one in usual].count("td_open") == 16
