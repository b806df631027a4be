# ruff: noqa: I001  grouped by what they are for
# The batch of a step
from .stream import Batch as Batch
from .stream import DatasetStream as DatasetStream
from .stream import Stream as Stream
from .stream import TrainingStream as TrainingStream
from .stream import View as View

# For a plain torch DataLoader
from .dataloader import SeededBatchSampler as SeededBatchSampler
from .dataloader import SeededCollate as SeededCollate
from .dataloader import SeededDataset as SeededDataset
from .dataloader import seeded_loader as seeded_loader

# Images, and what a network is built for: shapes and classes
from .images import Images as Images
from .inputs import DataInfo as DataInfo
