"""Datasets, from files on disk to the batch of a step.

`sources` holds the list of dataset readers and loads a dataset for a run (`Library`, `load`); each reader is one file
(`arrays`, `folders`, `benchmarks`, `parquet`, `hub`). `stream` says which batch belongs to which step (`Stream`,
`TrainingStream`, `DatasetStream`, `batches`); `dataloader` gives the same batches to a plain torch DataLoader.
`run_data` holds what a run trains and is evaluated on (`RunData`), `transforms` the augmentations, `inputs` what a
network takes.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
