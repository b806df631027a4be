"""Corrupted images, made once and kept on disk, so that only the first network pays for them.

What happens to an image depends on the image, the corruption, the severity and its index in the data alone.

The library `imagecorruptions` needs colour images of at least 32x32. Gray ones get three equal channels and go back to
gray by their luminance. Smaller ones are enlarged by the least whole factor that makes every side 32 or more, each
pixel to a square of equal pixels; afterwards one pixel is taken back from the middle of every square. So noise has its
full strength, and a blur is as wide as it would be in a picture of 32 pixels. Where the library has nothing to add and
divides by zero (a spatter without a drop), the image stays as it is.
"""

import shutil
import signal
import warnings
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
from PIL import Image, ImageDraw, ImageFont

from spacedkd.data.images import ImageSet, to_image
from spacedkd.data.pixel_cache import load_pixels, pixel_record
from spacedkd.data.stream import Batch
from spacedkd.evaluation.corruptions import CORRUPTIONS, SEVERITIES, check_corruptions
from spacedkd.evaluation.instrument import Advance
from spacedkd.evaluation.subject import route_interrupts
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import cache_folder, remove_leftovers, write_json, write_whole
from spacedkd.runtime.processes import available_cores
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.signals import child_context

LEAST_SIDE = 32
"""pixels that `imagecorruptions` needs of every side"""
_TAKE_A_SEED = ("impulse_noise", "glass_blur")
"""corruptions that do not use NumPy's global generator"""
CHUNK = 128
"""images that a process corrupts at a time"""
SERIAL = 4000
"""corrupted images that are made sooner in this process than others have started"""


def check_channels(channels: int) -> None:
    """Refuse images that are neither gray nor in colour."""
    if channels not in (1, 3):
        raise UserError(f"Corruptions are made for gray and colour images; these have {channels} channels.")


def corrupt(image: np.ndarray, name: str, severity: int, index: int) -> np.ndarray:
    """Return one corrupted image; both are uint8 [C, H, W] with one or three channels."""
    import imagecorruptions  # takes a second, which only those who corrupt should pay

    channels, height, width = image.shape
    factor = enlargement(height, width)
    large = image.transpose(1, 2, 0).repeat(factor, 0).repeat(factor, 1)
    colour = np.ascontiguousarray(np.broadcast_to(large, (*large.shape[:2], 3)))
    seed = seed_for(0, "corruption", name, severity, index) % 2**32
    options = {"seed": seed} if name in _TAKE_A_SEED else {}
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the division by zero below
        changed = np.asarray(imagecorruptions.corruption_dict[name](Image.fromarray(colour), severity, **options))
        corrupted = np.where(np.isnan(changed), colour, changed).astype(np.uint8)
    small = corrupted[factor // 2 :: factor, factor // 2 :: factor]
    if channels == 1:
        return np.asarray(Image.fromarray(small).convert("L"))[None]
    return np.ascontiguousarray(small.transpose(2, 0, 1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator while this lasts; afterwards it has the state it had before."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def enlargement(height: int, width: int) -> int:
    """Return the least whole factor that makes every side long enough for the library.

    >>> enlargement(8, 8), enlargement(28, 28), enlargement(32, 64)
    (4, 2, 1)
    """
    return max(1, -(-LEAST_SIDE // min(height, width)))


Job = tuple[Path, str, int, int, int]
"""file, corruption, severity, first image and the one after the last"""


def fingerprint(images: ImageSet) -> str:
    """Return the name of the folder for the corrupted versions of these images."""
    digest = sha256(f"1 {version('imagecorruptions-imaug')} {len(images.labels)} {images.shape}".encode())
    for rows in torch.arange(len(images.labels)).split(CHUNK):
        digest.update(images.resized(rows).cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


class CorruptedImages:
    """The corrupted images of a data set, made once and kept in `folder`; a cache folder unless given."""

    def __init__(self, images: ImageSet, folder: Path | None = None) -> None:
        check_channels(images.shape[0])
        self.images = images
        self.folder = (folder or cache_folder("corrupted")) / fingerprint(images)
        self._maps: dict[Path, np.ndarray] = {}
        """of the files that are complete"""

    def path(self, name: str, severity: int) -> Path:
        """Return the file of all images under one corruption."""
        return self.folder / f"{name}-{severity}.npy"

    def missing(self, names: Sequence[str], severities: Sequence[int]) -> list[tuple[str, int]]:
        """Return the corruptions and severities whose images are not there, or not complete."""
        check_corruptions(names, severities)
        return [pair for pair in product(names, severities) if self._map(self.path(*pair)) is None]

    def _map(self, path: Path) -> np.ndarray | None:
        if path not in self._maps:
            try:
                pixels = load_pixels(path, (len(self.images.labels), *self.images.shape))
            except OSError as error:
                raise self._unusable(error) from None
            if pixels is None:
                return None
            self._maps[path] = pixels[0]
        return self._maps[path]

    def _unusable(self, error: OSError) -> UserError:
        return UserError(f"Corrupted images cannot be kept in {self.folder} ({error}): use --cache FOLDER.")

    def make(
        self,
        names: Sequence[str],
        severities: Sequence[int],
        processes: int | None = None,
        advance: Advance = lambda _: None,
    ) -> None:
        """Make the images that are missing, on all cores unless `processes` is given.

        `advance` is called with the number of newly made images.
        """
        missing, count = self.missing(names, severities), len(self.images.labels)
        self._check_room(len(missing))
        with _workers(self.images, processes or (1 if len(missing) * count < SERIAL else available_cores())) as work:
            for name, severity in missing:
                with write_whole(self.path(name, severity)) as unfinished:
                    np.lib.format.open_memmap(unfinished, "w+", np.uint8, (count, *self.images.shape)).flush()
                    chunks = [(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
                    for done in work([(unfinished, name, severity, *chunk) for chunk in chunks]):
                        advance(done)
                    record = pixel_record(np.load(unfinished, mmap_mode="r"))
                write_json(self.path(name, severity).with_suffix(".json"), record)

    def _check_room(self, files: int) -> None:
        """Refuse a disk that has no room for this number of files."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        except OSError as error:
            raise self._unusable(error) from None
        needed = files * len(self.images.labels) * int(np.prod(self.images.shape))
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"The corrupted images need {needed / 1e9:.1f} GB in {self.folder.parent}, where {free / 1e9:.1f} GB "
                "are free: use --cache FOLDER, fewer --severities or a --limit."
            )

    def batches(self, name: str, severity: int, batch_size: int) -> Iterator[Batch]:
        """Yield every corrupted image once, normalised as the clean ones are."""
        pixels = self._map(self.path(name, severity))
        if pixels is None:
            raise UserError(f"{self.path(name, severity)} is missing or damaged. The same command makes it again.")
        for rows in torch.arange(len(self.images.labels)).split(batch_size):
            shown = torch.from_numpy(np.array(pixels[int(rows[0]) : int(rows[-1]) + 1]))
            yield Batch(self.images.normalise(shown), self.images.labels.cpu()[rows], rows)


@contextmanager
def _workers(images: ImageSet, processes: int) -> Iterator[Callable[[Sequence[Job]], Iterator[int]]]:
    """Give the function that does jobs and yields how many images each has made, in processes or in this one."""
    if processes == 1:
        yield lambda jobs: (_corrupt_rows(images, *job) for job in jobs)
        return
    pool = ProcessPoolExecutor(processes, child_context(hears_signals=True), _start_worker, (images,))

    def work(jobs: Sequence[Job]) -> Iterator[int]:
        # This starts the processes. They ignore Ctrl-C: this process ends them, and prints the message.
        with route_interrupts(signal.SIG_IGN):
            futures = [pool.submit(_corrupt_chunk, job) for job in jobs]
        yield from (future.result() for future in as_completed(futures))

    try:
        yield work
    except BrokenProcessPool:
        raise UserError(
            "A process that corrupted images was killed, perhaps for want of memory. The same command continues."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_images: ImageSet
"""those that this worker corrupts"""


def _start_worker(images: ImageSet) -> None:
    global _images
    import cv2

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _images = images


def _corrupt_chunk(job: Job) -> int:
    return _corrupt_rows(_images, *job)


def _corrupt_rows(images: ImageSet, path: Path, name: str, severity: int, start: int, stop: int) -> int:
    """Corrupt the images from `start` up to `stop` into their rows of a file; return how many they are."""
    clean = images.resized(torch.arange(start, stop)).cpu().numpy()
    rows = np.lib.format.open_memmap(path, "r+")
    for index, image in enumerate(clean, start):
        rows[index] = corrupt(image, name, severity, index)
    return stop - start


TILE, GAP, LABEL = 96, 6, 20
"""pixels of the picture `write_grid` draws"""
ACROSS = 2
"""corruptions in a row of it"""


def write_grid(path: Path, images: ImageSet, names: Sequence[str] = (), severities: Sequence[int] = ()) -> None:
    """Draw the first image of a data set clean and under every corruption; all of them unless some are named.

    For each corruption there is its name, the clean image, and one tile for each severity.
    """
    if path.suffix.lower() != ".png":
        raise UserError(f"The grid is a PNG picture: call it {path.with_suffix('.png')}.")
    names, severities = names or CORRUPTIONS, severities or SEVERITIES
    check_corruptions(names, severities)
    check_channels(images.shape[0])
    clean = images.resized(torch.tensor([0]))[0].cpu().numpy()
    wide, high = (1 + len(severities)) * (TILE + GAP) + 3 * GAP, LABEL + TILE + 2 * GAP
    lines = -(-len(names) // ACROSS)
    picture = Image.new("RGB", (ACROSS * wide, lines * high + GAP), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for number, name in enumerate(names):
        x, y = (number // lines) * wide + 2 * GAP, (number % lines) * high + GAP
        label = f"{name.replace('_', ' ')}: clean, severity {', '.join(map(str, severities))}"
        pen.text((x, y), label, fill="black", font=font)
        for column, tile in enumerate([clean, *(corrupt(clean, name, severity, 0) for severity in severities)]):
            # Enlarged without smoothing, so that every pixel a network sees can be seen.
            small = to_image(torch.from_numpy(np.array(tile))).convert("RGB")
            large = small.resize((TILE, TILE), Image.Resampling.NEAREST)
            picture.paste(large, (x + column * (TILE + GAP), y + LABEL))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
