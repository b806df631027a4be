"""Networks of one's own: built by a function, read wherever they show their features, saved and loaded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import NetworkSpec, UserError
from spacedkd.data import Batch
from spacedkd.data.inputs import DataInfo, Inputs
from spacedkd.methods import KD, Ingredients, Progress
from spacedkd.models import Classifier, EarlyExits
from spacedkd.models.branches import Branches, Gate
from spacedkd.models.classifier import feature_width
from spacedkd.models.early_exits import WithShadow
from spacedkd.models.factory import build_network
from spacedkd.models.feature_hooks import find_hint
from spacedkd.models.pretrained import check_trained, keep_normalisation
from spacedkd.models.student_io import load_student, save_student

CLASSES = ("cat", "dog", "fox")
CHANCE = torch.Generator().manual_seed(0)
VECTORS = DataInfo(torch.randn(2, 6, generator=CHANCE), CLASSES)
IMAGES = DataInfo(torch.randn(2, 3, 8, 8, generator=CHANCE), CLASSES, ((0.5,) * 3, (0.2,) * 3))
TOKENS = DataInfo(
    {"tokens": torch.tensor([[1, 2, 3], [4, 5, 0]]), "mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}, CLASSES
)
PAIR = DataInfo((torch.randn(2, 6, generator=CHANCE), torch.randn(2, 4, generator=CHANCE)), CLASSES)


def mlp(width: int = 5, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, classes))


class Cnn(nn.Module):
    """BatchNorm, a 1x1 convolution as classifier, and a decoy layer after it."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Conv2d(width, 3, 1)
        self.unrelated = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.body(images)
        logits: Tensor = self.classifier(pooled)
        self.unrelated(pooled.flatten(1))
        return logits.flatten(1)


class Text(nn.Module):
    """A text classifier with named inputs, which answers as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 7)
        self.score = nn.Linear(7, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"loss": tokens.sum(), "logits": self.score(self.pooled(tokens, mask))}

    def pooled(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return (self.embedding(tokens) * mask[:, :, None]).sum(1)


class Two(nn.Module):
    """Two inputs, and features of its own choice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 3)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([first, second], 1)
        return self.last(both), both[:, :4] * 2


class Named(NamedTuple):
    logits: Tensor
    aux: Tensor


class Auxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.last, self.aux = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Named:
        hidden = self.body(x).relu()
        return Named(self.last(hidden), self.aux(hidden))


class Hidden(nn.Module):
    """Its logits leave no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.last


class Scaled(nn.Module):
    """Its logits leave the last linear layer, but not as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (2.0 * self.last(self.first(x))).log_softmax(1)


def build_from(make: Callable[..., nn.Module], info: DataInfo, seed: int = 0, **options: Any) -> nn.Module:
    return build_network(NetworkSpec("resnet18_small", options), info, seed, make)


@pytest.mark.parametrize(
    ("make", "info", "features"),
    [
        (mlp, VECTORS, lambda n, x: n[:2](x)),
        (Cnn, IMAGES, lambda n, x: n.body(x).flatten(1)),
        (Text, TOKENS, lambda n, x: n.pooled(**x)),
        (Two, PAIR, lambda n, x: 2 * torch.cat(x, 1)[:, :4]),
        (Auxiliary, VECTORS, lambda n, x: n.body(x).relu()),
        (lambda: nn.Linear(6, 3), VECTORS, lambda n, x: x),
        (lambda: timm.create_model("resnet18_small", width=4, num_classes=3), IMAGES, lambda n, x: n.forward_head(
            n.forward_features(x), pre_logits=True)),
    ],
    ids=["mlp", "cnn", "text", "two inputs", "namedtuple", "linear", "timm"],
)  # fmt: skip
def test_features_are_given_or_what_enters_the_last_linear_layer(
    make: Callable[..., nn.Module], info: DataInfo, features: Callable[[Any, Any], Tensor]
) -> None:
    network = build_from(make, info).eval()
    with torch.no_grad():
        (prediction,) = Classifier(network)(info.sample)
        assert torch.equal(prediction.logits, _own_logits(network, info.sample))
        torch.testing.assert_close(prediction.features, features(network, info.sample), rtol=0, atol=0)
    assert feature_width(network, info.sample) == prediction.features.shape[1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def _own_logits(network: nn.Module, sample: Inputs) -> Tensor:
    if isinstance(sample, Mapping):
        output = network(**sample)
    else:
        output = network(*sample) if isinstance(sample, tuple) else network(sample)
    if isinstance(output, Mapping):
        return output["logits"]  # type: ignore[no-any-return]
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def test_a_network_that_was_never_built_here_is_read_too() -> None:
    """As in a loop of one's own; the look for its last layer leaves BatchNorm and the mode alone."""
    assert isinstance(IMAGES.sample, Tensor)
    network, twin = Cnn(), Cnn()
    twin.load_state_dict(network.state_dict())
    (prediction,) = Classifier(network)(IMAGES.sample)
    assert torch.equal(prediction.logits, twin(IMAGES.sample))
    assert network.training
    assert all(torch.equal(a, b) for a, b in zip(network.buffers(), twin.buffers(), strict=True))


def test_the_last_layer_is_looked_for_once() -> None:
    """A search in the middle of a training would be a pass more after a resume than without one."""
    network = build_from(mlp, VECTORS)
    calls: list[int] = []
    network.register_forward_pre_hook(lambda *_: calls.append(1))
    for model in (Classifier(network), deepcopy(Classifier(network)), Classifier(deepcopy(network))):
        calls.clear()
        assert model(VECTORS.sample)[0].features.shape == (2, 5)
        assert len(calls) == 1


def test_copies_stay_apart() -> None:
    model = Classifier(build_from(mlp, VECTORS)).eval()
    model(VECTORS.sample)
    copy = deepcopy(model)
    expected = copy(VECTORS.sample)[0]
    with torch.no_grad():
        model.network[0].weight.mul_(-1)  # type: ignore[index, union-attr, operator]
    assert not torch.equal(model(VECTORS.sample)[0].features, expected.features)
    assert torch.equal(copy(VECTORS.sample)[0].features, expected.features)


def test_weights_are_a_function_of_the_seed_alone() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))

    for make in (mlp, lazy):
        torch.manual_seed(1)
        first, before = build_from(make, VECTORS, 7).state_dict(), torch.get_rng_state()
        torch.manual_seed(2)
        second = build_from(make, VECTORS, 7).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(first["0.weight"], build_from(make, VECTORS, 8).state_dict()["0.weight"])
        torch.manual_seed(1)
        assert torch.equal(before, torch.get_rng_state())


class Noisy(nn.Linear):
    """Draws random numbers in evaluation too; it has none of timm's methods."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return logits + torch.randn_like(logits)


def test_a_network_may_draw_random_numbers_in_evaluation() -> None:
    assert isinstance(build_from(lambda: Noisy(6, 3), VECTORS), Noisy)


def test_a_function_has_a_name() -> None:
    spec = NetworkSpec(f"{__name__}:mlp", {"width": 9})
    network, expected = build_network(spec, VECTORS, 3), build_from(mlp, VECTORS, 3, width=9)
    assert isinstance(network, nn.Sequential)
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), expected.state_dict().values(), strict=True)
    )


def test_kd_trains_a_cnn_of_ones_own_by_its_features() -> None:
    """A wide teacher, a narrow student, features through an adapter: the loss falls, and the teacher stands still."""
    widths = {"teacher": 6, "student": 4}
    ingredients = Ingredients(lambda role, **_: build_from(Cnn, IMAGES, width=widths[role]), IMAGES.sample)
    method = KD(feature_weight=1.0)
    models = method.models(ingredients)
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    batch = Batch(x, torch.arange(16) % 3, torch.arange(16))
    before = {name: value.clone() for name, value in models["teacher"].eval().state_dict().items()}
    optimizer = torch.optim.SGD(models["student"].parameters(), 0.05)
    history = []
    for step in range(30):
        losses = method.losses("student", models, batch, Progress(step, 1, 30))
        history.append({name: loss.item() for name, loss in losses.items()})
        optimizer.zero_grad()
        sum(losses.values()).backward()  # type: ignore[union-attr]
        # The decoy is no part of the answer, so nothing can reach it.
        assert all((w.grad is None) == ("unrelated" in n) for n, w in models["student"].named_parameters())
        optimizer.step()
    assert history[-1]["feature"] < 0.5 * history[0]["feature"]
    assert history[-1]["label"] < history[0]["label"]
    assert all(torch.equal(before[name], value) for name, value in models["teacher"].state_dict().items())


def test_features_that_cannot_be_found_are_missed_only_where_they_are_needed() -> None:
    ingredients = Ingredients(lambda role, **_: build_from(Hidden, VECTORS), VECTORS.sample)
    with pytest.raises(UserError, match=r"^Hidden does not show its features: .*\(logits, features\), .*$"):
        KD().models(ingredients)
    models = KD(feature_weight=0).models(ingredients)
    (prediction,) = models["student"](VECTORS.sample)
    assert prediction.features.shape == (2, 0)
    batch = Batch(VECTORS.sample, torch.tensor([0, 2]), torch.arange(2))
    losses = KD(feature_weight=0).losses("student", models, batch, Progress(0, 1, 1))
    torch.testing.assert_close(losses["label"], 0.7 * F.cross_entropy(prediction.logits, batch.labels))


def test_features_are_what_enters_the_last_linear_layer_whatever_becomes_of_its_output() -> None:
    network = build_from(Scaled, VECTORS)
    (prediction,) = Classifier(network)(VECTORS.sample)
    assert torch.equal(prediction.features, network.first(VECTORS.sample))
    assert torch.equal(prediction.logits, network(VECTORS.sample))


@pytest.mark.parametrize(("make", "info"), [(mlp, VECTORS), (Text, TOKENS), (Cnn, IMAGES)])
def test_methods_that_look_inside_say_so(make: Callable[..., nn.Module], info: DataInfo) -> None:
    network, sample = build_from(make, info), cast_any(info.sample)
    for look in (EarlyExits, find_hint, WithShadow):
        with pytest.raises(UserError, match=r"does not show two or more of its blocks or stages.*Use method='kd'"):
            look(network, sample)
    with pytest.raises(UserError, match=r"does not show where its last stage begins.*Use method='kd'"):
        Branches(network, [], sample, Gate)


def cast_any(sample: Inputs) -> Any:
    return sample


class Answers(nn.Module):
    """Says whatever it is told to."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.answer = nn.Parameter(torch.ones(1)), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.weight * x)


def broken(x: Tensor) -> None:
    raise KeyError("no such thing\nat all")


class Impostor(nn.Module):
    """Has timm's words for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward_features(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward_head(self, x: Tensor) -> Tensor:
        return self.last(x)  # type: ignore[no-any-return]

    def get_classifier(self) -> nn.Module:
        return self.last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)  # type: ignore[no-any-return]


ONLY = mlp()


def the_same() -> nn.Module:
    return ONLY


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "must make an nn.Module, got NoneType."),
        (lambda: torch.zeros(3), "must make an nn.Module, got Tensor."),
        (lambda: nn.Module, "must make an nn.Module, got type."),
        (lambda wide: mlp(), "fails to be built: TypeError: "),
        (lambda: nn.Flatten(), "has no parameters, so there is nothing to train."),
        (the_same, "the same module twice"),
        (lambda: nn.Linear(5, 3), "fails on float32 [2, 6]: RuntimeError: mat1 and mat2"),
        (lambda: Answers(broken), "fails on float32 [2, 6]: KeyError: 'no such thing"),
        (lambda: Answers(lambda x: None), "NoneType: it must return logits [B, C]"),
        (lambda: Answers(lambda x: (x, x, x)), "3 of Tensor, Tensor, Tensor"),
        (lambda: Answers(lambda x: (x, "f")), "2 of Tensor, str"),
        (lambda: Answers(lambda x: {"scores": x}), "a mapping of scores"),
        (
            lambda: Answers(lambda x: x[:, 0]),
            "must give float logits [2, classes] for float32 [2, 6], got float32 [2].",
        ),
        (lambda: Answers(lambda x: x[:1, :3]), "got float32 [1, 3]."),
        (lambda: Answers(lambda x: x[:, :3].long()), "got int64 [2, 3]."),
        (lambda: Answers(lambda x: (x[:, :3], x[0])), "must give float features [2, width], got float32 [6]."),
        (lambda: Answers(lambda x: x), "6 logits, and the data has 3 classes"),
        (lambda: Answers(lambda x: x[:, :3] / 0), "not finite"),
        (Impostor, "forward_features, forward_head and get_classifier"),
    ],
)
def test_bad_networks_are_each_one_line(make: Any, message: str) -> None:
    if make is the_same:
        build_from(make, VECTORS)
    with pytest.raises(UserError) as error:
        build_from(make, VECTORS)
    assert message in str(error.value)
    assert str(error.value).startswith(f"Network {__name__}:")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "info", "message"),
    [
        ("tests.models.test_user_networks:nothing", VECTORS, "Cannot load 'tests.models.test_user_networks:nothing'"),
        ("tests.models.test_user_networks:CLASSES", VECTORS, "must be a function that makes an nn.Module, got tuple."),
        ("resnet18_small", VECTORS, "takes images [N, channels, height, width]"),
        ("resnet18_small", TOKENS, "takes images [N, channels, height, width]"),
        ("resnet18_small", IMAGES._replace(classes=()), "The data does not say how many classes there are"),
    ],
)
def test_names_that_do_not_fit_are_explained(name: str, info: DataInfo, message: str) -> None:
    with pytest.raises(UserError) as error:
        build_network(NetworkSpec(name), info, 0)
    assert message in str(error.value)


def test_classes_nobody_names_are_not_counted() -> None:
    assert build_from(lambda: nn.Linear(6, 17), VECTORS._replace(classes=()))(VECTORS.sample).shape == (2, 17)


class Tied(nn.Module):
    """One weight in two places, below the name DDP would have stripped."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.ModuleDict({"one": nn.Linear(6, 6), "last": nn.Linear(6, 3)})
        self.module["two"] = self.module["one"]

    def forward(self, x: Tensor) -> Tensor:
        return self.module["last"](self.module["two"](self.module["one"](x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "options", "info"),
    [(mlp, {"width": 9}, VECTORS), (Cnn, {}, IMAGES), (Text, {}, TOKENS), (Tied, {}, VECTORS._replace(classes=()))],
)
def test_a_saved_student_is_loaded_again(
    tmp_path: Path, make: Callable[..., nn.Module], options: dict[str, Any], info: DataInfo
) -> None:
    spec = NetworkSpec(f"{__name__}:{make.__name__}", options)
    network = build_network(spec, info, seed=5)
    save_student(network, spec, info, tmp_path / "student")
    expected = _own_logits(network.eval(), info.sample)
    state = torch.get_rng_state()
    for folder, function in ((tmp_path, None), (tmp_path / "student", None), (str(tmp_path), make)):
        opened = load_student(folder, function)
        assert not opened.training
        assert torch.equal(_own_logits(opened, info.sample), expected)
    assert torch.equal(torch.get_rng_state(), state)
    later = build_network(NetworkSpec(spec.name, options, weights=str(tmp_path)), info, seed=6)
    assert torch.equal(_own_logits(later.eval(), info.sample), expected)
    check_trained(NetworkSpec(spec.name, options, weights=str(tmp_path)), 3)


def test_timms_form_opens_by_itself(tmp_path: Path) -> None:
    spec = NetworkSpec("resnet18_small", {"width": 4})
    network = build_network(spec, IMAGES, seed=5).eval()
    save_student(network, spec, IMAGES, tmp_path / "student")
    opened = load_student(tmp_path)
    assert torch.equal(opened(IMAGES.sample), network(IMAGES.sample))
    with pytest.raises(UserError, match=r"is timm's resnet18_small: leave network= out"):
        load_student(tmp_path, mlp)


def test_a_network_of_timms_with_weights_in_two_places_is_saved(tmp_path: Path) -> None:
    spec = NetworkSpec("coat_lite_tiny", {"img_size": 32, "embed_dims": (8, 8, 8, 8)})
    info = DataInfo(torch.randn(2, 3, 32, 32, generator=CHANCE), CLASSES, ((0.5,) * 3, (0.2,) * 3))
    network = build_network(spec, info, seed=5).eval()
    places = [value.data_ptr() for value in network.state_dict().values()]
    assert len({*places}) < len(places)
    save_student(network, spec, info, tmp_path / "student")
    assert torch.equal(load_student(tmp_path)(info.sample), network(info.sample))


DAMAGED = ("", "[]", "null", "{}", "{" * 99_999, '{"architecture": 3}', '{"architecture": "no"}', '{"made_by": []}')
OPTIONS = ('{"architecture": "resnet18_small", "model_args": "wide"}', '{"made_by": "os:getcwd", "options": 3}')


@pytest.mark.parametrize("damage", [*DAMAGED, *OPTIONS])
def test_a_damaged_description_of_a_student_is_explained(tmp_path: Path, damage: str) -> None:
    spec = NetworkSpec("resnet18_small", {"width": 4})
    save_student(build_network(spec, IMAGES, seed=5), spec, IMAGES, tmp_path / "student")
    (tmp_path / "student" / "config.json").write_text(damage)
    with pytest.raises(UserError, match=r"student.*(does not describe|does not name|cannot be opened)"):
        load_student(tmp_path)


def test_students_that_cannot_be_loaded_are_explained(tmp_path: Path) -> None:
    def local() -> nn.Module:
        return mlp(4)

    network = build_from(local, VECTORS)
    save_student(
        network, NetworkSpec("resnet18_small"), VECTORS, tmp_path / "student", made_by=f"{__name__}:nowhere.local"
    )
    assert torch.equal(load_student(tmp_path, local)(VECTORS.sample), network.eval()(VECTORS.sample))
    with pytest.raises(UserError, match=r"cannot be built\. Cannot load .*load_student\(folder, network=\.\.\.\)"):
        load_student(tmp_path)
    with pytest.raises(UserError, match=r"do not fit Sequential"):
        load_student(tmp_path, mlp)
    with pytest.raises(UserError, match=r"their class 'fox' is 'owl' in the data"):
        build_network(
            NetworkSpec(f"{__name__}:mlp", weights=str(tmp_path)), VECTORS._replace(classes=("cat", "dog", "owl")), 0
        )
    with pytest.raises(UserError, match=r"no run folder"):
        load_student(Path(__file__).parent, mlp)


class AllChildren(nn.Module):
    """Runs whatever modules it holds, so it must not be given more of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.flat = nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_a_trained_network_sees_images_normalised_as_in_its_own_training(tmp_path: Path) -> None:
    spec = NetworkSpec(f"{__name__}:AllChildren")
    network = build_network(spec, IMAGES, seed=5)
    save_student(network, spec, IMAGES, tmp_path / "student")
    pixels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    second = ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    mean, std = (torch.tensor(values)[:, None, None] for values in second)
    trained = NetworkSpec(spec.name, weights=str(tmp_path))
    later = build_network(trained, IMAGES._replace(normalisation=second), seed=6)
    keep_normalisation(later, trained, second)
    logits = Classifier(deepcopy(later))((pixels - mean) / std)[0].logits
    torch.testing.assert_close(logits, network((pixels - 0.5) / 0.2))
