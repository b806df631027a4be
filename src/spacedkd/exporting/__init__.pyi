# What an export has written
from .export import Exported as Exported
