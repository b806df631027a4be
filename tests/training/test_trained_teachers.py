"""A teacher that is trained already: from a run, from a file, from timm; and whatever does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spacedkd import DataSpec, MethodSpec, NetworkSpec, RunSpec, Spaced, UserError, train
from spacedkd.cli.overrides import to_spec
from spacedkd.data.sources import load
from spacedkd.methods import METHODS
from tests.conftest import of_model
from tests.training.stepping import ready

FIXED = MethodSpec("hinton", {"teacher_learns": False})
SMALL = NetworkSpec("resnet18_small", {"width": 4})


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose student is to be a teacher."""
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("runs") / "teacher"
    train(replace(TINY, method=MethodSpec("none"), network=NetworkSpec("resnet18_small", {"width": 6})), folder)
    return folder


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "student" / "model.safetensors")


def test_a_run_teaches_and_does_not_move(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    flags = {"method": "hinton", "teacher_weights": str(taught), "network": "resnet18_small", "width": 4, "epochs": 2}
    spec = replace(to_spec(flags), data=tiny.data, batch_size=8, precision="32-true", engine=tiny.engine)
    assert spec.teacher == NetworkSpec("resnet18_small", {"width": 6}, str(taught))
    assert spec.method.options == {"teacher_learns": False}
    result = train(spec, tmp_path / "run")
    assert result.plan["roles"] == ["student"]
    after = of_model(tmp_path / "run", "teacher")
    before = weights_of(taught)
    assert after.keys() == {f"model/teacher/network.{name}" for name in before}
    assert all(torch.equal(after[f"model/teacher/network.{name}"], value) for name, value in before.items())


@pytest.mark.parametrize("kind", ["run", "student folder", "safetensors", "torch file", "file of a parallel run"])
def test_every_place_weights_can_lie_in(tmp_path: Path, tiny: RunSpec, taught: Path, kind: str) -> None:
    weights = weights_of(taught)
    if kind == "safetensors":
        save_file(weights, tmp_path / "weights.safetensors")
    elif kind == "torch file":
        torch.save(weights, tmp_path / "weights.pth")
    elif kind == "file of a parallel run":
        torch.save(
            {"state_dict": {f"module.{name}": value for name, value in weights.items()}}, tmp_path / "weights.pt"
        )
    places = {"run": taught, "student folder": taught / "student"}
    place = places.get(kind) or next(path for path in tmp_path.iterdir() if path.stem == "weights")
    teacher = NetworkSpec("resnet18_small", {"width": 6}, str(place))
    run = ready(replace(tiny, method=FIXED, teacher=teacher))
    assert torch.equal(run.models["teacher"].network.fc.weight, weights["fc.weight"])
    assert "teacher" not in run.learners


@pytest.mark.parametrize("same", [True, False])
def test_a_student_starts_where_its_trained_teacher_started_or_elsewhere(
    tiny: RunSpec, taught: Path, same: bool
) -> None:
    """As the same_init of the run says, whose seed is the teacher's."""
    network = NetworkSpec("resnet18_small", {"width": 6})
    alone = ready(replace(tiny, method=MethodSpec("none"), network=network))
    spec = replace(tiny, method=FIXED, network=network, teacher=replace(network, weights=str(taught)), same_init=same)
    first, student = (run.models["student"].network.fc.weight for run in (alone, ready(spec)))
    assert torch.equal(first, student) is same


def test_a_trained_teacher_may_learn_on(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    teacher = NetworkSpec("resnet18_small", {"width": 6}, str(taught))
    spec = replace(tiny, method=MethodSpec("hinton"), teacher=teacher, schedule=Spaced("4st"))
    run = ready(spec)
    assert torch.equal(run.models["teacher"].network.fc.weight, weights_of(taught)["fc.weight"])
    assert "teacher" in run.learners


def test_a_student_may_start_from_trained_weights_too(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    network = NetworkSpec("resnet18_small", {"width": 6}, str(taught))
    run = ready(replace(tiny, method=MethodSpec("none"), network=network))
    assert torch.equal(run.models["student"].network.fc.weight, weights_of(taught)["fc.weight"])


def three_classes(folder: Path) -> DataSpec:
    import numpy as np

    images, labels = np.zeros((12, 8, 8, 3), np.uint8), np.arange(12) % 3
    np.savez(folder / "three.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return DataSpec(str(folder / "three.npz"))


def test_what_does_not_fit(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "spec.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage.pth").write_bytes(b"garbage")
    torch.save({"a": 1}, tmp_path / "numbers.pth")
    save_file({"fc.bias": torch.zeros(7), "fc.weight": torch.zeros(7, 48)}, tmp_path / "seven.safetensors")
    wide = NetworkSpec("resnet18_small", {"width": 6})
    cases = [
        (wide, tmp_path / "missing", "There are no weights at"),
        (wide, unfinished, "is not finished, so it has no student yet: spacedkd train --resume"),
        (wide, tmp_path / "empty", "is no run folder"),
        (wide, tmp_path / "garbage.pth", "holds no weights that can be read"),
        (wide, tmp_path / "numbers.pth", "holds no weights"),
        (wide, tmp_path / "seven.safetensors", "7 classes, and the data has 10"),
        (SMALL, taught, "do not fit SmallResNet"),
    ]
    for network, place, message in cases:
        spec = replace(tiny, method=FIXED, teacher=replace(network, weights=str(place)))
        with pytest.raises(UserError) as error:
            train(spec, tmp_path / "run")
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()


def test_a_teacher_must_know_the_datas_classes(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    data = three_classes(tmp_path)
    for teacher, message in (
        (NetworkSpec("resnet18_small", {"width": 6}, str(taught)), "10 classes, and the data has 3"),
        (NetworkSpec("resnet18", {"pretrained": True}), "timm's resnet18 are for 1000 classes, and the data has 3"),
    ):
        for method in (FIXED, MethodSpec("shake", {"teacher_learns": False})):
            with pytest.raises(UserError, match=message):
                train(replace(tiny, data=data, batch_size=4, method=method, teacher=teacher), tmp_path / "run")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_trained_teacher_or_says_that_it_has_none(
    tmp_path: Path, tiny: RunSpec, taught: Path, name: str
) -> None:
    flags = {"method": name, "teacher_weights": str(taught), "network": "resnet18_small", "width": 4}
    if name in ("none", "self-kd", "one", "pcl", "dml", "kdcl", "tsb-like", "dlb", "ps-kd"):
        with pytest.raises(UserError, match=f"method {name} has no teacher that could be trained already"):
            to_spec(flags)
        return
    spec = replace(to_spec(flags), data=tiny.data, batch_size=8, epochs=1, precision="32-true", engine=tiny.engine)
    train(spec, tmp_path / "run")
    after, before = of_model(tmp_path / "run", "teacher"), weights_of(taught)
    assert all(torch.equal(after[f"model/teacher/network.{key}"], value) for key, value in before.items())


def test_generations_and_assistants_do_not_start_from_the_trained_teacher(
    tmp_path: Path, tiny: RunSpec, taught: Path
) -> None:
    teacher = NetworkSpec("resnet18_small", {"width": 6}, str(taught))
    same = NetworkSpec("resnet18_small", {"width": 6})
    spec = replace(tiny, method=MethodSpec("ban", {"teacher_learns": False}), teacher=teacher, network=same)
    run = ready(spec)
    first = weights_of(taught)["conv1.weight"]
    begin = ready(replace(tiny, method=MethodSpec("none"), network=same))
    initial = begin.models["student"].network.conv1.weight
    for role in ("generation 1", "student"):
        weight = run.models[role].network.conv1.weight
        assert not torch.equal(weight, first)
        assert not torch.equal(weight, initial), "nor from where the teacher itself began"


def test_a_fixed_teacher_sees_images_as_in_its_own_training(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    """Other training images have another mean and deviation; what the teacher says of an image stays the same."""
    teacher = NetworkSpec("resnet18_small", {"width": 6}, str(taught))
    both = []
    for limit in (40, 300):
        data = DataSpec("digits", train_limit=limit)
        run = ready(replace(tiny, data=data, method=FIXED, teacher=teacher))
        run.models["teacher"].eval()
        both.append(run.models["teacher"](run.data.test.inputs(torch.arange(20)))[0].logits)
    assert run.data.train.mean != load(tiny.data).train.mean
    torch.testing.assert_close(both[0], both[1], atol=1e-4, rtol=1e-4)


def test_a_student_folder_knows_its_network(taught: Path) -> None:
    spec = to_spec({"method": "hinton", "teacher_weights": str(taught / "student")})
    assert spec.teacher == NetworkSpec("resnet18_small", {"width": 6}, str(taught / "student"))


def test_a_broken_description_is_said_to_be_one(tmp_path: Path, tiny: RunSpec, taught: Path) -> None:
    for content in ("{", None):
        folder = tmp_path / f"broken {content}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes((taught / "student" / "model.safetensors").read_bytes())
        if content is not None:
            (folder / "config.json").write_text(content)
        teacher = NetworkSpec("resnet18_small", {"width": 6}, str(folder))
        with pytest.raises(UserError, match="does not describe the weights in its folder"):
            train(replace(tiny, method=FIXED, teacher=teacher), tmp_path / "run")


def test_a_teacher_that_does_not_learn_needs_weights(tmp_path: Path, tiny: RunSpec) -> None:
    with pytest.raises(UserError, match="frozen teacher needs trained weights: teacher.weights"):
        train(replace(tiny, method=FIXED), tmp_path / "run")


@pytest.mark.parametrize("method", ["kd", "ban"])
def test_whoever_learned_from_another_trained_teacher_has_another_path(
    tmp_path: Path, tiny: RunSpec, method: str
) -> None:
    for seed in (3, 4):
        train(replace(tiny, epochs=1, method="none", seed=seed), tmp_path / f"teacher{seed}")
    first, second = (
        replace(
            tiny,
            epochs=1,
            method=MethodSpec(method, {"teacher_learns": False}),
            teacher=replace(tiny.network, weights=str(tmp_path / f"teacher{seed}")),
        )
        for seed in (3, 4)
    )
    train(replace(first, record=("offline", "online")), tmp_path / "recorded")
    train(replace(first, teacher_path=tmp_path / "recorded"), tmp_path / "follows")
    with pytest.raises(UserError, match="another trained teacher"):
        train(replace(second, teacher_path=tmp_path / "recorded"), tmp_path / "other")
