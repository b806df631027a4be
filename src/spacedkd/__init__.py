"""Spaced knowledge distillation: train a network with a teacher that learns ahead of it in time.

A run is a spec and a folder:

    from spacedkd import DataSpec, NetworkSpec, RunSpec, Spaced, train

    spec = RunSpec(data=DataSpec("digits"), network=NetworkSpec("resnet18_small", {"width": 16}),
                   schedule=Spaced("1.5ep"), epochs=30)
    run = train(spec, "runs/spaced")
    print(run.student())

The schedule, the losses and the methods also stand alone, for a training loop of your own:

    for turn in Spaced("586st").turns(("teacher", "student"), range(31280)):
        ...  # turn.role learns from batch(turn.step)

A name is imported when it is first asked for, so what needs no torch does not import it. `import spacedkd.models` makes
the small-image ResNets known to timm.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test holds it equal to _PLACES
    from spacedkd import learning_rate as learning_rate
    from spacedkd.data.datasets import DatasetStream as DatasetStream
    from spacedkd.data.inputs import Shown as Shown
    from spacedkd.data.stream import Batch as Batch
    from spacedkd.data.stream import Images as Images
    from spacedkd.data.stream import Stream as Stream
    from spacedkd.data.stream import TrainingStream as TrainingStream
    from spacedkd.data.stream import View as View
    from spacedkd.duration import Duration as Duration
    from spacedkd.duration import in_steps as in_steps
    from spacedkd.errors import UserError as UserError
    from spacedkd.evaluation.plan import Plan as Plan
    from spacedkd.experiments.instruments import evaluate as evaluate
    from spacedkd.experiments.runner import compare as compare
    from spacedkd.methods import losses as losses
    from spacedkd.methods.ban import BAN as BAN
    from spacedkd.methods.ctkd import CTKD as CTKD
    from spacedkd.methods.dkd import DKD as DKD
    from spacedkd.methods.dlb import DLB as DLB
    from spacedkd.methods.dml import DML as DML
    from spacedkd.methods.eskd import ESKD as ESKD
    from spacedkd.methods.fitnet import FitNet as FitNet
    from spacedkd.methods.hinton import Hinton as Hinton
    from spacedkd.methods.kd import KD as KD
    from spacedkd.methods.kdcl import KDCL as KDCL
    from spacedkd.methods.lskd import LSKD as LSKD
    from spacedkd.methods.method import Ingredients as Ingredients
    from spacedkd.methods.method import Method as Method
    from spacedkd.methods.method import Models as Models
    from spacedkd.methods.method import Progress as Progress
    from spacedkd.methods.no_kd import NoKD as NoKD
    from spacedkd.methods.one import ONE as ONE
    from spacedkd.methods.pcl import PCL as PCL
    from spacedkd.methods.ps_kd import PSKD as PSKD
    from spacedkd.methods.self_kd import SelfKD as SelfKD
    from spacedkd.methods.shake import SHAKE as SHAKE
    from spacedkd.methods.takd import TAKD as TAKD
    from spacedkd.methods.tsb import TSB as TSB
    from spacedkd.models.build import load_student as load_student
    from spacedkd.models.exits import EarlyExits as EarlyExits
    from spacedkd.models.heads import Classifier as Classifier
    from spacedkd.models.heads import Prediction as Prediction
    from spacedkd.recipes import recipe as recipe
    from spacedkd.run import Run as Run
    from spacedkd.run import read_run as read_run
    from spacedkd.schedule import Ahead as Ahead
    from spacedkd.schedule import Offline as Offline
    from spacedkd.schedule import Online as Online
    from spacedkd.schedule import Schedule as Schedule
    from spacedkd.schedule import Spaced as Spaced
    from spacedkd.schedule import Turn as Turn
    from spacedkd.schedule import Window as Window
    from spacedkd.spec import AugmentSpec as AugmentSpec
    from spacedkd.spec import DataSpec as DataSpec
    from spacedkd.spec import EngineSpec as EngineSpec
    from spacedkd.spec import MethodSpec as MethodSpec
    from spacedkd.spec import NetworkSpec as NetworkSpec
    from spacedkd.spec import OptimizerSpec as OptimizerSpec
    from spacedkd.spec import RateSpec as RateSpec
    from spacedkd.spec import RunSpec as RunSpec
    from spacedkd.spec import read_spec as read_spec
    from spacedkd.training.learning import learning as learning
    from spacedkd.training.loop import Moment as Moment
    from spacedkd.training.loop import train as train

_PLACES = {
    "data.datasets": "DatasetStream",
    "data.inputs": "Shown",
    "data.stream": "Batch Images Stream TrainingStream View",
    "duration": "Duration in_steps",
    "errors": "UserError",
    "evaluation.plan": "Plan",
    "experiments.instruments": "evaluate",
    "experiments.runner": "compare",
    "methods.ban": "BAN",
    "methods.ctkd": "CTKD",
    "methods.dkd": "DKD",
    "methods.dlb": "DLB",
    "methods.dml": "DML",
    "methods.eskd": "ESKD",
    "methods.fitnet": "FitNet",
    "methods.hinton": "Hinton",
    "methods.kd": "KD",
    "methods.kdcl": "KDCL",
    "methods.lskd": "LSKD",
    "methods.method": "Ingredients Method Models Progress",
    "methods.no_kd": "NoKD",
    "methods.one": "ONE",
    "methods.pcl": "PCL",
    "methods.ps_kd": "PSKD",
    "methods.self_kd": "SelfKD",
    "methods.shake": "SHAKE",
    "methods.takd": "TAKD",
    "methods.tsb": "TSB",
    "models.build": "load_student",
    "models.exits": "EarlyExits",
    "models.heads": "Classifier Prediction",
    "recipes": "recipe",
    "run": "Run read_run",
    "schedule": "Ahead Offline Online Schedule Spaced Turn Window",
    "spec": "AugmentSpec DataSpec EngineSpec MethodSpec NetworkSpec OptimizerSpec RateSpec RunSpec read_spec",
    "training.learning": "learning",
    "training.loop": "Moment train",
}
_MODULES = {"learning_rate": "learning_rate", "losses": "methods.losses"}
_HOME = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(f"spacedkd.{_MODULES[name]}")
    elif name in _HOME:
        found = getattr(import_module(f"spacedkd.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'spacedkd' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
