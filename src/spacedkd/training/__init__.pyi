# ruff: noqa: I001  grouped by what they are for
# What a run tells while it is trained
from .loggers import RunLogger as RunLogger
from .loop import Event as Event

# What it will take
from .forecast import Forecast as Forecast
