"""Corrupted images on disk, so that only the first network pays for them.

    FOLDER/FINGERPRINT/gaussian_noise-3.npy     uint8 [N, C, H, W]
    FOLDER/FINGERPRINT/gaussian_noise-3.json    written last: its checksum

The fingerprint is of the images' own bits and of everything else that decides the corrupted ones. A file is written
under another name and renamed when it is complete, and read through a memory map. What is damaged is made anew.
"""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch

from spacedkd.data.images import ImageSet
from spacedkd.data.kept import record_of, whole
from spacedkd.data.parallel import cores
from spacedkd.data.stream import Batch
from spacedkd.errors import UserError
from spacedkd.evaluation import corruptions
from spacedkd.evaluation.held_still import Advance, interruptions_go_to
from spacedkd.evaluation.plan import check_corruptions
from spacedkd.files import cache_folder, remove_leftovers, write_json, write_whole
from spacedkd.stopping import child_context

CHUNK = 128
SERIAL = 4000
"""so few corrupted images are made before other processes have started"""

Job = tuple[Path, str, int, int, int]
"""file, corruption and severity, and from which image up to which"""


def fingerprint(images: ImageSet) -> str:
    """Names the corrupted images that these images give."""
    digest = sha256(f"1 {version('imagecorruptions-imaug')} {len(images.labels)} {images.shape}".encode())
    for rows in torch.arange(len(images.labels)).split(CHUNK):
        digest.update(images.fitted(rows).cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


class CorruptedImages:
    """A data set's images under every corruption asked for, made once and kept in `folder`."""

    def __init__(self, images: ImageSet, folder: Path | None = None) -> None:
        corruptions.check_channels(images.shape[0])
        self.images = images
        self.folder = (folder or cache_folder("corrupted")) / fingerprint(images)
        self._maps: dict[Path, np.ndarray] = {}
        """of the files that were found whole"""

    def path(self, name: str, severity: int) -> Path:
        return self.folder / f"{name}-{severity}.npy"

    def missing(self, names: Sequence[str], severities: Sequence[int]) -> list[tuple[str, int]]:
        check_corruptions(names, severities)
        return [one for one in product(names, severities) if self._map(self.path(*one)) is None]

    def _map(self, path: Path) -> np.ndarray | None:
        if path not in self._maps:
            try:
                found = whole(path, (len(self.images.labels), *self.images.shape))
            except OSError as error:
                raise self._refused(error) from None
            if found is None:
                return None
            self._maps[path] = found[0]
        return self._maps[path]

    def _refused(self, error: OSError) -> UserError:
        return UserError(f"Corrupted images cannot be kept in {self.folder} ({error}): use --cache FOLDER.")

    def make(
        self,
        names: Sequence[str],
        severities: Sequence[int],
        processes: int | None = None,
        advance: Advance = lambda _: None,
    ) -> None:
        """Make what is not there yet, with all cores unless told otherwise; `advance` is told of images."""
        todo, count = self.missing(names, severities), len(self.images.labels)
        self._check_room(len(todo))
        with _workers(self.images, processes or (1 if len(todo) * count < SERIAL else cores())) as work:
            for name, severity in todo:
                with write_whole(self.path(name, severity)) as unfinished:
                    np.lib.format.open_memmap(unfinished, "w+", np.uint8, (count, *self.images.shape)).flush()
                    chunks = [(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
                    for done in work([(unfinished, name, severity, *chunk) for chunk in chunks]):
                        advance(done)
                    record = record_of(np.load(unfinished, mmap_mode="r"))
                write_json(self.path(name, severity).with_suffix(".json"), record)

    def _check_room(self, files: int) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        except OSError as error:
            raise self._refused(error) from None
        needed = files * len(self.images.labels) * int(np.prod(self.images.shape))
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"The corrupted images need {needed / 1e9:.1f} GB in {self.folder.parent}, where {free / 1e9:.1f} GB "
                "are free: use --cache FOLDER, fewer --severities or a --limit."
            )

    def batches(self, name: str, severity: int, batch_size: int) -> Iterator[Batch]:
        """Every corrupted image once, normalised as the clean ones are."""
        pixels = self._map(self.path(name, severity))
        if pixels is None:
            raise UserError(f"{self.path(name, severity)} is gone or damaged. The same command makes it anew.")
        for rows in torch.arange(len(self.images.labels)).split(batch_size):
            shown = torch.from_numpy(np.array(pixels[int(rows[0]) : int(rows[-1]) + 1]))
            yield Batch(self.images.normalised(shown), self.images.labels.cpu()[rows], rows)


@contextmanager
def _workers(images: ImageSet, processes: int) -> Iterator[Callable[[Sequence[Job]], Iterator[int]]]:
    """What does jobs and yields how many more images are there: processes, or this one if one is enough."""
    if processes == 1:
        yield lambda jobs: (_corrupt(images, *job) for job in jobs)
        return
    pool = ProcessPoolExecutor(processes, child_context(hears_signals=True), _start, (images,))

    def work(jobs: Sequence[Job]) -> Iterator[int]:
        # This starts the processes. They do not hear Ctrl-C: whoever started them ends them, and speaks for them.
        with interruptions_go_to(signal.SIG_IGN):
            futures = [pool.submit(_work, job) for job in jobs]
        yield from (future.result() for future in as_completed(futures))

    try:
        yield work
    except BrokenProcessPool:
        raise UserError(
            "A process that corrupted images was killed, perhaps for want of memory. The same command goes on."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_images: ImageSet
"""of a worker: those it corrupts"""


def _start(images: ImageSet) -> None:
    global _images
    import cv2

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _images = images


def _work(job: Job) -> int:
    return _corrupt(_images, *job)


def _corrupt(images: ImageSet, path: Path, name: str, severity: int, start: int, stop: int) -> int:
    clean = images.fitted(torch.arange(start, stop)).cpu().numpy()
    kept = np.lib.format.open_memmap(path, "r+")
    for place, image in enumerate(clean, start):
        kept[place] = corruptions.corrupt(image, name, severity, place)
    return stop - start
