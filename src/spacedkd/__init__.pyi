# ruff: noqa: I001  grouped by what they are for
# Train, compare, evaluate, export
from .comparison.compare import compare as compare
from .evaluation.evaluate import evaluate as evaluate
from .exporting.export import export as export
from .reporting.notebook import report as report
from .training.forecast import forecast as forecast
from .training.train import train as train

# The config of a run
from .config.optimizer import OptimizerSpec as OptimizerSpec
from .config.optimizer import RateSpec as RateSpec
from .config.recipes import recipe as recipe
from .config.spec import AugmentSpec as AugmentSpec
from .config.spec import DataSpec as DataSpec
from .config.spec import EngineSpec as EngineSpec
from .config.spec import MethodSpec as MethodSpec
from .config.spec import NetworkSpec as NetworkSpec
from .config.spec import RunSpec as RunSpec
from .config.spec import read_spec as read_spec

# Schedules; the module `schedule` has all of them, and what a schedule of your own needs
from .schedule import Ahead as Ahead
from .schedule import Duration as Duration
from .schedule import Offline as Offline
from .schedule import Online as Online
from .schedule import Spaced as Spaced

# The results of a run
from .models.student_io import load_student as load_student
from .runs.result import Run as Run
from .runs.result import read_run as read_run

# For training loops of your own, and other trainers
from .data.dataloader import seeded_loader as seeded_loader
from .integrations.spacing import Spacing as Spacing
from .methods import losses as losses
from .models.freezing import learning as learning
from .trajectory.snapshot_teacher import Snapshots as Snapshots
from .trajectory.snapshot_teacher import SnapshotTeacher as SnapshotTeacher
from .trajectory.targets import Targets as Targets

# Errors and signals
from .runtime.errors import Diverged as Diverged
from .runtime.errors import UserError as UserError
from .runtime.signals import Signals as Signals
from .runtime.signals import Stopped as Stopped

# Packages and modules with more names
from . import comparison as comparison
from . import data as data
from . import evaluation as evaluation
from . import exporting as exporting
from . import learning_rate as learning_rate
from . import methods as methods
from . import models as models
from . import schedule as schedule
from . import training as training
