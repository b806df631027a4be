# ruff: noqa: I001  grouped by what they are for
# For callbacks and loggers
from .loggers import RunLogger as RunLogger
from .loop import Event as Event

# Time, memory and disk that a run will need
from .forecast import Forecast as Forecast
