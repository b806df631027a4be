"""Datasets of Hugging Face: on the hub, or saved to disk by `datasets`.

No script of a dataset is ever run: `datasets` 4, the oldest version that is installed, has no way to. The hub gets a
few seconds to answer, so that a hub that cannot be reached costs no more.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from spacedkd.config.spec import DataSpec
from spacedkd.data.parquet import OPTIONS, dataset_of_tables, table_of_dataset
from spacedkd.data.reader import RawDataset, Reader
from spacedkd.runtime.errors import UserError, first_line, unknown
from spacedkd.runtime.processes import print_notice

ANSWER_SECONDS = 5.0
NAME = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
"""owner/name, or owner/name:configuration"""
LOCAL_FOLDERS = ("data", "datasets", "images", "runs")
"""names of folders that are never taken for an owner on the hub"""


def read_hub(spec: DataSpec) -> RawDataset:
    """Read owner/name or owner/name:configuration from the hub, or from the client's cache."""
    import datasets

    name, _, configuration = spec.source.partition(":")
    print_notice(f"Asking the Hugging Face hub for {spec.source}.")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it repeats itself before it gives up
    try:
        with offline_without_answer(name):
            loaded = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # the hub's client has many kinds of errors, and we can handle none of them
        raise UserError(
            f"There is no folder or file {spec.source} here, and as a name on the Hugging Face hub it does not load: "
            f"{first_line(error)}"
        ) from None
    return _read_datasets(spec, loaded)


def is_hub_name(source: str) -> bool:
    """Return whether a source is a name on the hub; refuse a path in a folder that exists, or usually does."""
    path = Path(source)
    if not NAME.fullmatch(source) or path.exists():
        return False
    if path.parent.is_dir():
        names = sorted(entry.name for entry in path.parent.iterdir())
        if not names:
            raise UserError(f"There is no {path.name} in the folder {path.parent}, which is empty.")
        raise unknown(f"path in the folder {path.parent}", path.name, names)
    if path.parts[0] in LOCAL_FOLDERS:
        raise UserError(f"There is no folder or file {source} here, and not even a folder {path.parent}.")
    return True


@contextmanager
def offline_without_answer(name: str) -> Iterator[None]:
    """Let the hub's client look only into its cache if the hub does not answer within a few seconds."""
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if not any(before):
            HfApi().dataset_info(name, timeout=ANSWER_SECONDS)
    except RepositoryNotFoundError:
        raise
    except HfHubHTTPError:  # the hub answers: the client knows when to ask again
        pass
    except Exception:  # of the network; each of the client's own attempts would wait again
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def read_saved_to_disk(spec: DataSpec) -> RawDataset:
    """Read the folder that `save_to_disk` of Hugging Face datasets wrote."""
    import datasets

    try:
        return _read_datasets(spec, datasets.load_from_disk(spec.source))
    except UserError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{spec.source} cannot be read as a saved dataset: {first_line(error)}") from None


def _read_datasets(spec: DataSpec, loaded: Any) -> RawDataset:
    """Return the dataset of a Hugging Face dataset, or of a mapping of them by split."""
    splits: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    return dataset_of_tables(spec.source, splits, table_of_dataset, spec)


HUB = Reader(
    name="OWNER/NAME",
    about="a dataset on the Hugging Face hub; OWNER/NAME:CONFIGURATION picks one",
    docs="a dataset on the Hugging Face hub, also `OWNER/NAME:CONFIGURATION`; a local path of that name comes first",
    read=read_hub,
    recognises=is_hub_name,
    options=OPTIONS,
)
SAVED_TO_DISK = Reader(
    name="FOLDER of save_to_disk",
    about="a dataset that Hugging Face datasets saved to disk",
    docs="what `save_to_disk` of Hugging Face `datasets` writes",
    read=read_saved_to_disk,
    recognises=lambda source: any((Path(source) / name).is_file() for name in ("dataset_dict.json", "state.json")),
    options=OPTIONS,
)
