"""The scales of a reproduction: the same arms on networks, images and runs that one can afford."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from spacedkd.averages import parse_average
from spacedkd.config.recipes import QUIRKS, RECIPES, recipe
from spacedkd.config.spec import AugmentSpec, DataSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.runtime.errors import unknown
from spacedkd.schedule import Duration

Arm = Callable[[RunSpec], RunSpec]

TITLES = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "resnet18x2": "ResNet-18x2",
    "resnet18x4": "ResNet-18x4",
    "resnet18x8": "ResNet-18x8",
    "deit_tiny": "DeiT-Tiny",
    "pit_tiny": "PiT-Tiny",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "imagenet-100": "ImageNet-100",
    "imagenet-1k": "ImageNet-1k",
}
TRANSFORMERS = ("deit_tiny", "pit_tiny")
EPOCHS = {"cnn": 80, "self": 80, "vit": 300}
"""of the paper's runs"""


@dataclass(frozen=True)
class Scale:
    """A size of networks, images and runs."""

    name: str
    about: str
    seeds: int
    networks: Mapping[str, NetworkSpec]
    data: Mapping[str, DataSpec]
    epochs: float | None = None
    """of every run; None takes the paper's"""
    batch_size: int | None = None
    evaluate_every: Duration = Duration(1, "ep")
    precision: str = "auto"
    """where the recipe names none; auto is up to the store"""
    recipe: str = "paper"
    """paper, or official for what its released code does"""
    average: str | None = None
    """the average of the student's weights that every run keeps, such as poly:2; None keeps none"""
    root: str = "data"
    unjudged: str = ""
    """why no verdicts are given at this scale; empty where they are"""

    def run(
        self, network: str, data: str = "cifar100", arm: Arm = lambda run: run, teacher: str | None = None
    ) -> RunSpec:
        """Return an arm of online KD: two networks, of which the student is named first."""
        family = "vit" if network in TRANSFORMERS or teacher in TRANSFORMERS else "cnn"
        return self._run(family, network, data, arm, teacher)

    def self_run(self, network: str, data: str = "cifar100", arm: Arm = lambda run: run) -> RunSpec:
        """Return an arm of self KD: one network with early exits, in the variant that the arm names."""
        if network not in TRANSFORMERS:
            return self._run("self", network, data, arm, asked_for=["method.variant"])
        self_kd = MethodSpec("self-kd", {"variant": "live"})
        return self._run("vit", network, data, lambda run: arm(replace(run, method=self_kd)))

    def names(self, spec: RunSpec) -> tuple[str, str]:
        """Return the names of a run's network (the student's) and data at this scale, such as resnet18 and cifar100."""
        network_name = next(name for name, network in self.networks.items() if _is_variant(spec.network, network))
        data_name = next(name for name, data in self.data.items() if _has_same_images(spec.data, data))
        return network_name, data_name

    @property
    def folder(self) -> str:
        """The name of the folder of its tables in a store."""
        averaged = "" if self.average is None else f"average-{self.average.replace(':', '-')}"
        return "-".join(filter(None, [self.name, "" if self.recipe == "paper" else self.recipe, averaged]))

    def part(self, epochs: float, network: str = "resnet18") -> float:
        """Return this number of the paper's epochs as epochs of this scale's shorter runs."""
        whole = EPOCHS["vit" if network in TRANSFORMERS else "cnn"]
        return epochs if self.epochs is None else epochs * self.epochs / whole

    def _run(
        self,
        family: str,
        network: str,
        data: str,
        arm: Arm,
        teacher: str | None = None,
        asked_for: Collection[str] = (),
    ) -> RunSpec:
        name = f"{self.recipe}-{family}"
        change = partial(self._adapt, network=network, data=data, arm=arm, teacher=teacher)
        run = change(RECIPES[name].spec)
        others = [quirk for quirk in RECIPES[name].quirks if _is_about_another_method(quirk, name, run)]
        return recipe(name, others, change, asked_for)

    def _adapt(self, run: RunSpec, network: str, data: str, arm: Arm, teacher: str | None) -> RunSpec:
        """Return a recipe's run with the networks, the data and the length of this scale."""
        where = replace(self.data[data], drop_last=run.data.drop_last)
        if where.root != self.root and where.source != "digits":
            where = replace(where, root=self.root)
        if where.class_list is not None:
            where = replace(where, class_list=f"{self.root}/{where.class_list}")
        if where.augmentation is None:
            where = replace(where, augmentation=run.data.augmentation)
        epochs, rate = run.epochs if self.epochs is None else self.epochs, run.rate
        if rate.warmup is not None:
            rate = replace(rate, warmup=Duration(rate.warmup.amount * epochs / run.epochs, "ep"))
        return arm(
            replace(
                run,
                network=self.networks[network],
                teacher=None if teacher is None else self.networks[teacher],
                data=where,
                epochs=epochs,
                rate=rate,
                batch_size=self.batch_size or run.batch_size,
                evaluate_every=self.evaluate_every,
                average=self.average,
                precision=self.precision if run.precision == "auto" else run.precision,
            )
        )


def _is_variant(network: NetworkSpec, of: NetworkSpec) -> bool:
    """Return whether a network is another one with further options, such as those that a quirk adds."""
    return of.name == network.name and {**network.options, **of.options} == network.options


def _has_same_images(data: DataSpec, other: DataSpec) -> bool:
    return (data.source, data.train_limit) == (other.source, other.train_limit)


def _is_about_another_method(quirk: str, name: str, run: RunSpec) -> bool:
    """Return whether a quirk would set options of the recipe's method in a run that has another."""
    fields = QUIRKS[quirk].settings(run)
    return run.method.name != RECIPES[name].spec.method.name and any(field.startswith("method.") for field in fields)


def title(network: str, data: str) -> str:
    """Return the name of a table's row."""
    return f"{TITLES[network]}, {TITLES[data]}"


def _resnets(width: float) -> dict[str, NetworkSpec]:
    depths = {f"resnet{depth}": NetworkSpec(f"resnet{depth}_small", {"width": width}) for depth in (18, 50, 101)}
    wider = {times: round(width * times**0.5, 2) for times in (2, 4, 8)}
    return depths | {f"resnet18x{times}": NetworkSpec("resnet18_small", {"width": w}) for times, w in wider.items()}


_DROP_PATH = {"drop_path_rate": 0.1}
_PAPER_NETWORKS = {
    **{f"resnet{depth}": NetworkSpec(f"resnet{depth}_small") for depth in (18, 50, 101)},
    **{f"resnet18x{times}": NetworkSpec(f"resnet18x{times}") for times in (2, 4, 8)},
    "deit_tiny": NetworkSpec("deit_tiny_patch16_224", _DROP_PATH),
    "pit_tiny": NetworkSpec("pit_ti_224", _DROP_PATH),
}


def _transformers(side: int, patch: int, width: int, depth: int, pit: tuple[int, int, int]) -> dict[str, NetworkSpec]:
    """Return smaller forms of both: for images of this side, so wide and deep; `pit` are the depths of its stages."""
    deit = {"img_size": side, "patch_size": patch, "embed_dim": width, "depth": depth, "num_heads": 2}
    pools = {"img_size": side, "patch_size": patch, "stride": patch // 2, "stem_type": "overlap"}
    stages = {"base_dims": [width // 4] * 3, "depth": [*pit], "heads": [2, 4, 8], "mlp_ratio": 4}
    return {
        "deit_tiny": NetworkSpec("deit_tiny_patch16_224", deit | _DROP_PATH),
        "pit_tiny": NetworkSpec("pit_ti_224", pools | stages | _DROP_PATH),
    }


SMOKE = Scale(
    "smoke",
    "tiny networks for 16 epochs on 40 to 70 of the digits that come with the install: every cell is there, and none "
    "of the numbers says anything",
    seeds=2,
    networks=_resnets(4) | _transformers(8, 2, 16, 3, (1, 1, 1)),
    data={
        name: DataSpec("digits", train_limit=limit, augmentation="digits")
        for name, limit in {"cifar100": 40, "tiny-imagenet": 50, "imagenet-100": 60, "imagenet-1k": 70}.items()
    },
    epochs=16,
    batch_size=10,  # half an epoch is more than a step, so that no interval is another one
    evaluate_every=Duration(2, "ep"),
    unjudged="two seeds of tiny networks on 40 to 70 digits show that every cell can be made, and nothing of what the "
    "paper claims",
)
_SMALL = DataSpec(augmentation="small", augment=AugmentSpec(crop=2, flip=True), image_size=16, class_limit=25)
CPU = Scale(
    "cpu",
    "ResNets a quarter as wide and transformers with an eighth (DeiT) or a quarter (PiT) of the parameters for 60 "
    "epochs on 16x16 pixels, crop and mirror: 25 classes of CIFAR-100, Tiny-ImageNet and ImageNet-100 (12 500 training "
    "images), 100 of ImageNet-1k (25 000)",
    seeds=6,
    networks=_resnets(16) | _transformers(16, 4, 96, 6, (1, 3, 2)),
    data={
        "cifar100": replace(_SMALL, source="cifar100"),
        "tiny-imagenet": replace(_SMALL, source="tiny-imagenet"),
        "imagenet-100": replace(_SMALL, source="imagenet-100", class_list="imagenet100.txt", train_limit=12_500),
        "imagenet-1k": replace(_SMALL, source="imagenet-1k", class_limit=100, train_limit=25_000),
    },
    epochs=60,
)
PAPER = Scale(
    "paper",
    "the paper's settings",
    seeds=3,
    networks=_PAPER_NETWORKS,
    precision="32-true",
    data={
        "cifar100": DataSpec("cifar100"),
        "tiny-imagenet": DataSpec("tiny-imagenet"),
        "imagenet-100": DataSpec("imagenet-100", class_list="imagenet100.txt"),
        "imagenet-1k": DataSpec("imagenet-1k"),
    },
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def scale_of(name: str, recipe: str = "paper", root: str = "data", average: str | None = None) -> Scale:
    """Return a scale by name, with a recipe (paper or official), the folder of the data sets, and an average."""
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    if recipe not in ("paper", "official"):
        raise unknown("recipe of a reproduction", recipe, ("paper", "official"))
    text = None if average is None else str(parse_average(average))
    return replace(SCALES[name], recipe=recipe, root=root, average=text)
