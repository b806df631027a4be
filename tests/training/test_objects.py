"""Networks, data, optimizers, learning rates and methods of one's own, given as objects."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from spacedkd import (
    DataSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    Spaced,
    UserError,
    learning_rate,
    load_student,
    read_run,
    read_spec,
    train,
)
from spacedkd.cli import main
from spacedkd.comparison.results import compare_runs
from spacedkd.config.objects import Objects, digest
from spacedkd.data import Batch
from spacedkd.methods import KD, Ingredients, Method, Models, Progress
from spacedkd.models import Classifier
from spacedkd.reporting.page import write_page
from spacedkd.training.trained_models import load_run
from tests.conftest import TINY, assert_same_bits, of_model, tensors
from tests.training.stepping import ready
from tests.training.stopping import assert_same_run, train_in_parts

Named = Iterable[tuple[str, nn.Parameter]]
SHORT = replace(TINY, schedule=Spaced("4st"), epochs=2, optimizer=OptimizerSpec())
OWN = replace(SHORT, network=NetworkSpec())


class Small(nn.Module):
    """A BatchNorm network that is none of timm's."""

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(width * 36, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


def small() -> nn.Module:
    return Small()


@dataclass(frozen=True)
class Mentoring(Method):
    """Other words for teacher and student."""

    roles = ("mentor", "pupil")
    weight: float = 0.5

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {role: Classifier(ingredients.network(role)) for role in self.roles}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (own,) = models[role](batch.inputs)
        label = F.cross_entropy(own.logits, batch.labels)
        if role == "mentor":
            return {"label": label}
        with torch.no_grad():
            (mentor,) = models["mentor"](batch.inputs)
        apart = F.kl_div(
            own.logits.log_softmax(1), mentor.logits.log_softmax(1), log_target=True, reduction="batchmean"
        )
        return {"label": label, "mentor": self.weight * apart}


def test_roles_are_known_by_their_place(tmp_path: Path) -> None:
    """The pupil has the student's network, the mentor the teacher's; resumed, measured and reported like any other."""
    spec = replace(SHORT, teacher=NetworkSpec("resnet18_small", {"width": 6}))
    run = train(spec, tmp_path / "whole", method=Mentoring())
    train_in_parts(spec, tmp_path / "parts", 6, method=Mentoring())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    saved = tensors(tmp_path / "whole")
    assert len(saved["model/mentor/network.conv1.weight"]) == 6
    assert len(saved["model/pupil/network.conv1.weight"]) == 4
    student = load_file(tmp_path / "whole" / "student" / "model.safetensors")
    assert torch.equal(student["conv1.weight"], saved["model/pupil/network.conv1.weight"])
    assert run.score() == run.accuracies["pupil"]["test"]["final"]["last"]
    assert run.leader == "mentor"
    measured = load_run(tmp_path / "whole", objects=Objects(method=Mentoring()))
    assert (measured.student, {*measured.models}) == ("pupil", {"mentor", "pupil"})
    found = compare_runs([tmp_path / "whole"])
    assert found["arms"][0]["leader"]["mean"] == run.accuracies["mentor"]["test"]["final"]["last"]
    write_page(tmp_path / "report.html", found)
    assert "mentor" in (tmp_path / "report.html").read_text()


def test_the_same_words_give_the_same_bits_as_kd(tmp_path: Path) -> None:
    """Roles by other names, the same losses: the mentor is KD's teacher bit for bit."""
    train(SHORT, tmp_path / "own", method=Mentoring())
    train(SHORT, tmp_path / "kd", method=KD())
    own = {name.replace("/mentor/", "/teacher/"): value for name, value in of_model(tmp_path / "own", "mentor").items()}
    assert_same_bits(own, of_model(tmp_path / "kd", "teacher"))


def test_a_network_of_ones_own_is_trained_resumed_saved_and_measured(tmp_path: Path) -> None:
    objects = {"network": small, "optimizer": adam, "lr": lambda step: 0.01}
    run = train(OWN, tmp_path / "whole", **objects)
    train_in_parts(OWN, tmp_path / "parts", 6, **objects)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    spec = read_spec(tmp_path / "whole")
    assert spec.network.name == "tests.training.test_objects:small"
    assert spec.objects["network"] == {"name": "tests.training.test_objects:small", "digest": digest(small)}
    saved = load_run(tmp_path / "whole", objects=Objects(network=small))
    images = saved.data.test.inputs(torch.arange(898))
    student = load_student(tmp_path / "whole", network=small)
    with torch.no_grad():
        said = student(images)
        torch.testing.assert_close(saved.predict()(images)[0].logits, said)
    assert float((said.argmax(1) == saved.data.test.labels).double().mean()) == run.score()
    with pytest.raises(UserError, match=r"has a network of your own.*small: give it again"):
        load_run(tmp_path / "whole")


def test_the_teacher_may_be_another_network_of_ones_own(tmp_path: Path) -> None:
    train(OWN, tmp_path / "run", network=small, teacher=partial(Small, 6))
    saved = tensors(tmp_path / "run")
    assert len(saved["model/teacher/network.body.0.weight"]) == 6
    assert len(saved["model/student/network.body.0.weight"]) == 4
    assert saved["model/student/adapter.2.weight"].shape[0] == 6 * 36, "features are what enters the last linear layer"


def test_a_network_by_the_name_of_its_function(tmp_path: Path) -> None:
    """Typed, it is found again by its name; given as an object it gives the same bits."""
    name = "tests.training.test_objects:Small"
    train(replace(SHORT, network=NetworkSpec(name, {"width": 5})), tmp_path / "named")
    assert read_spec(tmp_path / "named").objects == {}
    train(replace(SHORT, network=NetworkSpec(options={"width": 5})), tmp_path / "given", network=Small)
    assert_same_bits(tensors(tmp_path / "named"), tensors(tmp_path / "given"))
    main(["evaluate", str(tmp_path / "named"), "--trust-code"])
    found = json.loads((tmp_path / "named" / "evaluation.json").read_text())
    top1 = found["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]["final"]["top1"]
    assert top1 == read_run(tmp_path / "named").score()


def other_small() -> nn.Module:
    return Small(5)


def test_a_run_goes_on_only_with_the_objects_it_began_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(OWN, tmp_path / "run", network=small, lr=lambda step: 0.01)
    (tmp_path / "run" / "result.json").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for objects, message in (
        ({}, "has a network of your own"),
        ({"network": small}, "has a lr of your own"),
        ({"network": other_small, "lr": lambda step: 0.01}, "was begun with network"),
        ({"network": small, "lr": lambda step: 0.02}, "has other source than then"),
    ):
        with pytest.raises(UserError, match=message) as error:
            train(OWN, tmp_path / "run", if_exists="resume", **objects)
        assert "\n" not in str(error.value)
    with pytest.raises(SystemExit) as exit_code:
        main(["train", "--resume", str(tmp_path / "run")])
    assert exit_code.value.code == 2
    assert "has a network of your own" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


class Decay:
    """A learning rate that is an object."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def __call__(self, step: int) -> float:
        return self.lr / (1 + step)


def test_a_digest_knows_what_an_object_is_made_of() -> None:
    def of_width(width: int) -> Callable[[], nn.Module]:
        return lambda: Small(width)

    assert digest(of_width(4)) == digest(of_width(4))
    assert digest(of_width(4)) != digest(of_width(5))
    assert digest(partial(Small, 4)) != digest(partial(Small, 5))
    assert digest(small) != digest(other_small)
    assert digest(lambda step: 0.1) == digest(lambda step: 0.1)  # whatever else stands in their line
    assert digest(lambda step: 0.1) != digest(lambda step: 0.2)
    assert digest(lambda: Small(4)) != digest(lambda: nn.Linear(4, 4))
    warm = learning_rate.linear(0, 0.1, 500)
    assert digest(learning_rate.join(warm, learning_rate.cosine(0.1, 9500), at=500)) != digest(
        learning_rate.join(warm, learning_rate.cosine(0.5, 9000), at=500)
    )
    assert digest(learning_rate.multistep(0.1, [60, 120])) != digest(learning_rate.multistep(0.1, [60, 120, 120]))
    assert digest(partial(Small, width=(8, 16, 8))) != digest(partial(Small, width=(8, 16, 16)))
    assert digest(Decay(0.1)) == digest(Decay(0.1)) != digest(Decay(7.0))
    assert digest(Decay(0.1).__call__) != digest(Decay(7.0).__call__)
    assert digest(TensorDataset(torch.zeros(3))) != digest(TensorDataset(torch.ones(3)))
    assert digest(TensorDataset(torch.zeros(3))) != digest(TensorDataset(torch.zeros(4)))
    space: dict[str, Any] = {}
    exec("def one(): return 1\ndef two(): return 2\ndef again(): return 1", space)
    assert digest(space["one"]) == digest(space["again"]) != digest(space["two"])


@pytest.mark.parametrize("name", ["lion", "lamb", "adan", "muon", "lookahead_adamw", "rmsproptf"])
def test_optimizers_of_timm_by_name(tmp_path: Path, name: str) -> None:
    spec = replace(SHORT, optimizer=OptimizerSpec(name, lr=1e-3))
    train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 3, 6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_lion_is_lion(tmp_path: Path) -> None:
    """Its first step is the learning rate times the sign of the gradient, whatever that gradient is."""
    spec = replace(TINY, method="none", optimizer=OptimizerSpec("lion", lr=1e-3, weight_decay=0), epochs=0.2)
    train(spec, tmp_path / "run")
    train(replace(spec, rate=RateSpec("cosine", warmup="1st", warmup_start=0)), tmp_path / "none")  # lr 0: not moved
    before, after = (tensors(tmp_path / name)["model/student/network.fc.weight"] for name in ("none", "run"))
    assert (after - before).abs().allclose(torch.tensor(1e-3), atol=1e-7)


def adam(named: Named) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for _, parameter in named], betas=(0.8, 0.99))


def test_an_optimizer_of_ones_own_is_handed_the_named_parameters(tmp_path: Path) -> None:
    seen: list[str] = []

    def slow_head(named: Named) -> torch.optim.Optimizer:
        pairs = list(named)
        seen.extend(name for name, _ in pairs)
        return torch.optim.Adam([parameter for _, parameter in pairs], betas=(0.8, 0.99))

    train(SHORT, tmp_path / "closure", optimizer=slow_head)
    train(SHORT, tmp_path / "plain", optimizer=adam)
    assert_same_bits(tensors(tmp_path / "closure"), tensors(tmp_path / "plain"))
    assert "network.conv1.weight" in seen


class SAM(torch.optim.Optimizer):
    """Foret et al. 2021 as most people write it: climb by the gradient there is, ask for it there, go down by that."""

    def __init__(self, parameters: Iterable[nn.Parameter], rho: float = 0.05) -> None:
        super().__init__(parameters, {"lr": 0.01, "rho": rho})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        assert closure is not None, "SAM needs the closure"
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        climbed = [p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)) for p in parameters]
        for parameter, by in zip(parameters, climbed, strict=True):
            parameter.add_(by)
        self.zero_grad()
        closure()
        for parameter, by in zip(parameters, climbed, strict=True):
            parameter.sub_(by)
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


def sam(named: Named) -> torch.optim.Optimizer:
    return SAM(parameter for _, parameter in named)


def lbfgs(named: Named) -> torch.optim.Optimizer:
    return torch.optim.LBFGS([parameter for _, parameter in named], max_iter=3, history_size=4)


@pytest.mark.parametrize("make", [sam, lbfgs])
def test_optimizers_that_want_a_closure(tmp_path: Path, make: Callable[[Named], torch.optim.Optimizer]) -> None:
    spec = replace(SHORT, network=NetworkSpec("resnet18_small", {"width": 4, "drop_rate": 0.3}))
    run = train(spec, tmp_path / "whole", optimizer=make)
    train_in_parts(spec, tmp_path / "parts", 3, 6, optimizer=make)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert all(value.isfinite().all() for value in tensors(tmp_path / "whole").values() if value.is_floating_point())
    counts = run.cost["by_model"]
    assert counts["student updates"] == 10
    assert counts["student backward passes"] == 20 if make is sam else counts["student backward passes"] > 20


class BySharedMemory(SAM):
    """Moves the weights in a way that leaves no trace in them, and asks twice."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        before = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(0.05)
        assert not torch.equal(before, closure())


def test_an_optimizer_that_hides_what_it_does_gets_new_losses(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "run", optimizer=lambda named: BySharedMemory(parameter for _, parameter in named))


def test_rates_of_ones_own_optimizer_count_and_the_runs_rate_is_a_factor(tmp_path: Path) -> None:
    def two_rates(named: Named) -> torch.optim.Optimizer:
        first, *rest = [parameter for _, parameter in named]
        return torch.optim.SGD([{"params": [first], "lr": 0.004}, {"params": rest}], lr=0.02)

    spec = replace(SHORT, method="none", schedule=None, rate=RateSpec("multistep", milestones=("1ep",), factor=0.5))
    train(spec, tmp_path / "run", optimizer=two_rates)
    entries = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    rates = {entry["step"]: entry["lr"] for entry in entries if entry["event"] == "loss"}
    assert rates == pytest.approx({step: 0.004 if step < 5 else 0.002 for step in rates})
    assert {0, 8} <= rates.keys()


def test_optimizers_that_keep_a_kind_of_number(tmp_path: Path) -> None:
    spec = replace(SHORT, optimizer=OptimizerSpec("AdaFactorBV", lr=1e-3))
    train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_sam_goes_down_by_the_gradient_it_climbed_to(tmp_path: Path) -> None:
    """One step of softmax regression, by hand in float64."""

    def regression() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))

    spec = replace(OWN, method="none", schedule=None, epochs=0.2, precision="64-true")
    train(spec, tmp_path / "run", network=regression, optimizer=sam, lr=lambda step: 0.5)
    train(spec, tmp_path / "start", network=regression, optimizer=sam, lr=lambda step: 0.0)
    key = "model/student/network.1.weight"
    start, found = tensors(tmp_path / "start")[key], tensors(tmp_path / "run")[key]
    batch = ready(spec, Objects(network=regression)).stream.batch(0)
    x, y = batch.inputs.flatten(1).double(), F.one_hot(batch.labels, 10).double()

    def gradient(w: Tensor) -> Tensor:
        return ((x @ w.T).softmax(1) - y).T @ x / len(x)

    climbed = start + 0.05 * gradient(start) / gradient(start).norm()
    torch.testing.assert_close(found, start - 0.5 * gradient(climbed), atol=1e-7, rtol=1e-5)  # logits are float32


def test_a_plain_optimizer_of_ones_own_computes_its_losses_once(tmp_path: Path) -> None:
    class Plain(torch.optim.SGD):
        """Not torch's, so it is handed a closure, and asks it."""

    run = train(
        SHORT, tmp_path / "own", optimizer=lambda named: Plain([p for _, p in named], 0.01, 0.9, weight_decay=5e-4)
    )
    train(SHORT, tmp_path / "sgd")
    assert run.cost["by_model"]["student backward passes"] == run.cost["by_model"]["student updates"] == 10
    assert_same_bits(of_model(tmp_path / "own", "teacher"), of_model(tmp_path / "sgd", "teacher"))


def falling(step: int) -> float:
    return 0.02 * 0.5 ** (step // 5)


def test_a_learning_rate_of_ones_own(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "own", lr=falling)
    milestones = RateSpec("multistep", milestones=("1ep",), factor=0.5)
    train(replace(SHORT, optimizer=OptimizerSpec(lr=0.02), rate=milestones), tmp_path / "named")
    assert_same_bits(tensors(tmp_path / "own"), tensors(tmp_path / "named"))


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"network": lambda: None}, "must make an nn.Module, got NoneType"),
        ({"network": lambda: nn.Linear(1, 1)}, "fails on float32 [2, 1, 8, 8]"),
        ({"network": lambda: Small(classes=7)}, "7 logits, and the data has 10 classes"),
        ({"network": 3}, "network must be a function, got 3"),
        ({"lr": lambda step: math.nan if step == 7 else 0.1}, "lr(7) is nan"),
        ({"lr": lambda step: "0.1"}, "lr(0) is '0.1'"),
        ({"lr": lambda step: -1.0}, "lr(0) is -1.0"),
        ({"optimizer": lambda named: "adam"}, "must return a torch.optim.Optimizer for named parameters, got 'adam'"),
        (
            {"optimizer": lambda named: torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)},
            "got one of others or none",
        ),
        ({"data": (TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0).long()),) * 2}, "no items"),
        ({"data": 3}, "pair"),
        ({"lr": lambda: 0.1}, "fails at step 0: TypeError"),
        ({"optimizer": lambda: None}, "a function of named parameters, fails: TypeError"),
        ({"network": lambda: Small().requires_grad_(False)}, "no parameter with requires_grad"),
        ({"collate": list}, "give data=(train, test) too"),
    ],
)
def test_bad_objects_are_one_line_and_leave_nothing_behind(
    tmp_path: Path, objects: dict[str, Any], message: str
) -> None:
    spec = replace(OWN, data=DataSpec()) if "data" in objects else OWN
    with pytest.raises(UserError) as error:
        train(spec, tmp_path / "run", **objects)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_what_an_object_makes_meaningless_is_refused_by_name(tmp_path: Path) -> None:
    for spec, objects, message in (
        (replace(SHORT, rate=RateSpec("cosine")), {"lr": lambda step: 0.1}, "leave one of them out"),
        (replace(SHORT, rate=RateSpec(warmup="1ep")), {"lr": lambda step: 0.1}, "warmup does not matter"),
        (TINY, {"lr": lambda step: 0.1}, "optimizer.lr does not matter"),
        (TINY, {"optimizer": adam}, "lr does not matter with"),
        (replace(SHORT, method="dkd"), {"method": Mentoring()}, "method is given twice, as dkd"),
        (SHORT, {"method": Mentoring}, r"method must be an object, got the class: give Mentoring\(\)"),
        (
            replace(SHORT, optimizer=OptimizerSpec(weight_decay=0.1)),
            {"optimizer": adam},
            "weight_decay does not matter",
        ),
        (replace(TINY, network="resnet34_small"), {"network": small}, "network is given twice"),
        (replace(TINY, data=replace(TINY.data, mixup=0.2)), {"data": (1, 2)}, "does not matter"),
    ):
        with pytest.raises(UserError, match=message):
            train(spec, tmp_path / "run", **objects)


class ByNumpy(nn.Module):
    """Draws its weights and its masks outside of torch, and keeps a buffer that is a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.random.normal(0, 0.1, (10, 64))).float())
        self.register_buffer("whole", torch.arange(4.0))
        self.register_buffer("part", self.whole[2:])

    def forward(self, images: Tensor) -> Tensor:
        seen = images.flatten(1) * (0.5 + random.random() if self.training else 1.0)
        return seen @ self.weight.T


def test_networks_may_draw_from_numpy_and_python(tmp_path: Path) -> None:
    spec = replace(OWN, method=MethodSpec("kd", {"feature_weight": 0.0}))
    train(spec, tmp_path / "whole", network=ByNumpy)
    random.seed(5)
    np.random.seed(5)
    train_in_parts(spec, tmp_path / "parts", 6, network=ByNumpy)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def named_data() -> tuple[TensorDataset, TensorDataset]:
    torch.manual_seed(0)
    return tuple(TensorDataset(torch.randn(n, 64), torch.arange(n) % 3) for n in (33, 12))  # type: ignore[return-value]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3), nn.LogSoftmax(1))


def test_what_cannot_matter_is_refused_beside_the_name_of_a_function_too(tmp_path: Path) -> None:
    """As the objects themselves; the last of five batches has one item, which is enough without BatchNorm."""
    here = "tests.training.test_objects:"
    spec = replace(OWN, data=DataSpec(f"{here}named_data"), network=NetworkSpec(f"{here}linear"))
    train(spec, tmp_path / "named")
    train(replace(OWN, data=DataSpec()), tmp_path / "given", network=linear, data=named_data())
    assert_same_bits(tensors(tmp_path / "named"), tensors(tmp_path / "given"))
    for changed, message in (
        (replace(spec, data=replace(spec.data, train_limit=10)), "train_limit does not matter"),
        (replace(spec, data=replace(spec.data, mixup=0.2)), "mixup does not matter"),
        (replace(spec, optimizer=OptimizerSpec(f"{here}adam", lr=0.3)), "lr does not matter"),
        (replace(spec, optimizer=OptimizerSpec(f"{here}adam", weight_decay=0.3)), "weight_decay does not matter"),
        (replace(spec, optimizer=OptimizerSpec(lr=0.3), rate=RateSpec(f"{here}falling")), "lr does not matter"),
        (replace(spec, optimizer=OptimizerSpec(f"{here}adam", moves_frozen=True)), None),
        (replace(spec, optimizer=OptimizerSpec(f"{here}sam", moves_frozen=True)), "moves_frozen .*SAM"),
    ):
        if message is None:
            train(changed, tmp_path / "moving")
            continue
        with pytest.raises(UserError, match=message):
            train(changed, tmp_path / "run")
        assert not (tmp_path / "run").exists()


class Changing(TensorDataset):
    """Items of another kind from the ninth on, but for the few that are tried first."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return {"x": x, "label": y} if row % 2 and row > 8 else (x, y)


def test_a_mistake_that_shows_at_the_first_step_takes_no_folder(tmp_path: Path) -> None:
    train_set, test_set = named_data()
    bad = Changing(*train_set.tensors)
    spec = replace(OWN, data=DataSpec(), batch_size=32)
    with pytest.raises(UserError, match="do not fit into one batch"):
        train(spec, tmp_path / "run", network=linear, data=(bad, test_set))
    assert not (tmp_path / "run").exists()


def of_timm() -> nn.Module:
    return timm.create_model("resnet10t", num_classes=10, in_chans=1)  # type: ignore[no-any-return]


def test_a_timm_network_made_by_a_function_is_saved_in_timms_form(tmp_path: Path) -> None:
    spec = replace(OWN, method="none", schedule=None, epochs=0.4)
    train(spec, tmp_path / "run", network=of_timm)
    images = torch.randn(3, 1, 32, 32)
    opened = timm.create_model(f"local-dir:{tmp_path / 'run' / 'student'}", pretrained=True).eval()
    made = load_student(tmp_path / "run", network=of_timm)
    with torch.no_grad():
        assert torch.equal(opened(images), made(images))
        assert torch.equal(opened(images), load_student(tmp_path / "run")(images))
