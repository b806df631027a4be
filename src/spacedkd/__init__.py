"""Spaced knowledge distillation: train a network with a teacher that learns ahead of it in time.

A run is a spec and a folder:

    from spacedkd import DataSpec, NetworkSpec, RunSpec, Spaced, train

    spec = RunSpec(data=DataSpec("digits"), network=NetworkSpec("resnet18_small", {"width": 16}),
                   schedule=Spaced("1.5ep"), epochs=30)
    result = train(spec, "runs/spaced")
    print(result.student())

The schedule, the losses and the methods also stand alone, for a training loop of your own:

    for turn in Spaced("586st").turns(("teacher", "student"), range(31280)):
        ...  # turn.role learns from batch(turn.step)

Importing the package makes its small-image ResNets known to timm.
"""

from spacedkd.torchvision_operators import declare_missing as _declare_missing

_declare_missing()  # before anything imports timm, which imports torchvision

# ruff: noqa: E402
from spacedkd import learning_rate
from spacedkd.data.datasets import DatasetStream
from spacedkd.data.stream import Batch, Images, Stream, TrainingStream
from spacedkd.duration import Duration, in_steps
from spacedkd.errors import UserError
from spacedkd.methods import losses
from spacedkd.methods.kd import KD
from spacedkd.methods.method import Ingredients, Method, Models, Progress
from spacedkd.methods.no_kd import NoKD
from spacedkd.methods.self_kd import SelfKD
from spacedkd.models.build import load_student
from spacedkd.models.exits import EarlyExits
from spacedkd.models.heads import Classifier, Prediction
from spacedkd.run import Run, read_run
from spacedkd.schedule import Ahead, Offline, Online, Schedule, Spaced, Turn, Window
from spacedkd.spec import (
    AugmentSpec,
    DataSpec,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    read_spec,
)
from spacedkd.training.learning import learning
from spacedkd.training.loop import Moment, train

__all__ = [
    "KD",
    "Ahead",
    "AugmentSpec",
    "Batch",
    "Classifier",
    "DataSpec",
    "DatasetStream",
    "Duration",
    "EarlyExits",
    "EngineSpec",
    "Images",
    "Ingredients",
    "Method",
    "MethodSpec",
    "Models",
    "Moment",
    "NetworkSpec",
    "NoKD",
    "Offline",
    "Online",
    "OptimizerSpec",
    "Prediction",
    "Progress",
    "RateSpec",
    "Run",
    "RunSpec",
    "Schedule",
    "SelfKD",
    "Spaced",
    "Stream",
    "TrainingStream",
    "Turn",
    "UserError",
    "Window",
    "in_steps",
    "learning",
    "learning_rate",
    "load_student",
    "losses",
    "read_run",
    "read_spec",
    "train",
]
