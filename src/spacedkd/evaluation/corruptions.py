"""How a network stands images that are noisy, blurred, snowed in or badly compressed: the nineteen corruptions of
`imagecorruptions` (Hendrycks and Dietterich 2019; Michaelis et al. 2019), at severities 1 to 5.

What happens to an image depends on the image, the corruption, the severity and its place in the data alone.

The library wants colour images of at least 32x32. Gray ones get three equal channels and go back to gray by their
luminance. Smaller ones are enlarged by the least whole factor that makes every side 32 or more, each pixel to a square
of equal pixels; afterwards one pixel is taken back from the middle of every square. So noise has its full strength, and
a blur is as wide as it would be in a picture of 32 pixels. Where the library has nothing to add and divides by zero (a
spatter without a drop), the image stays as it is.
"""

import shutil
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from spacedkd.data.images import ImageSet, to_image
from spacedkd.data.parallel import available_cores
from spacedkd.data.pixel_cache import load_pixels, pixel_record
from spacedkd.data.stream import Batch
from spacedkd.evaluation.accuracy import NotFinite, Predict, correct
from spacedkd.evaluation.frozen import Advance, interruptions_go_to
from spacedkd.evaluation.settings import CORRUPTIONS, SEVERITIES, check_corruptions
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import cache_folder, remove_leftovers, write_json, write_whole
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.signals import child_context

# How a network stands images that are noisy, blurred, snowed in or badly compressed: the nineteen corruptions of

LEAST = 32
_SEEDED_THEMSELVES = ("impulse_noise", "glass_blur")
"""do not ask NumPy's global generator"""

TILE, GAP, LABEL = 96, 6, 20
"""pixels of the picture `write_grid` draws"""
ACROSS = 2
"""corruptions beside each other in it"""


def check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise UserError(f"Corruptions are made for gray and colour images; these have {channels} channels.")


def corrupt(image: np.ndarray, name: str, severity: int, index: int) -> np.ndarray:
    """One corrupted image; both are uint8 [C, H, W] with one or three channels."""
    import imagecorruptions  # takes a second, which only those who corrupt should pay

    channels, height, width = image.shape
    factor = enlargement(height, width)
    large = image.transpose(1, 2, 0).repeat(factor, 0).repeat(factor, 1)
    colour = np.ascontiguousarray(np.broadcast_to(large, (*large.shape[:2], 3)))
    seed = seed_for(0, "corruption", name, severity, index) % 2**32
    own = {"seed": seed} if name in _SEEDED_THEMSELVES else {}
    with seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the division by zero below
        changed = np.asarray(imagecorruptions.corruption_dict[name](Image.fromarray(colour), severity, **own))
        found = np.where(np.isnan(changed), colour, changed).astype(np.uint8)
    small = found[factor // 2 :: factor, factor // 2 :: factor]
    if channels == 1:
        return np.asarray(Image.fromarray(small).convert("L"))[None]
    return np.ascontiguousarray(small.transpose(2, 0, 1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """NumPy's global generator begins with this seed; whoever uses it outside does not notice."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


@dataclass(frozen=True)
class Corrupted:
    """The accuracy of every head under one corruption of one severity."""

    name: str
    severity: int
    accuracy: dict[str, float]


@dataclass(frozen=True)
class Corruptions:
    """Accuracies on corrupted images; `mean` of all of them is the mean corruption accuracy."""

    images: int
    clean: dict[str, float]
    """of every head on the images as they are"""
    names: tuple[str, ...]
    severities: tuple[int, ...]
    found: tuple[Corrupted, ...]
    mean: dict[str, float]
    enlarged: int
    """by which factor images were enlarged while they were corrupted"""


def corruptions(
    predict: Predict,
    head_names: Sequence[str],
    clean: Iterable[Batch],
    batches: Callable[[str, int], Iterable[Batch]],
    names: Sequence[str],
    severities: Sequence[int],
    images: int,
    enlarged: int = 1,
) -> Corruptions:
    """Accuracy on `images` images as they are, and as `batches(name, severity)` gives them."""

    def accuracy(shown: Iterable[Batch], what: str = "") -> dict[str, float]:
        try:
            return {head: int(count) / images for head, count in correct(predict, head_names, iter(shown)).items()}
        except NotFinite as error:
            raise NotFinite(f"{what}{error}") from None

    before = accuracy(clean)
    found = [
        Corrupted(name, severity, accuracy(batches(name, severity), f"Under {name} of severity {severity}: "))
        for name in names
        for severity in severities
    ]
    mean = {head: sum(one.accuracy[head] for one in found) / len(found) for head in before}
    return Corruptions(images, before, tuple(names), tuple(severities), tuple(found), mean, enlarged)


def enlargement(height: int, width: int) -> int:
    """The least whole factor that makes every side long enough for the library.

    >>> enlargement(8, 8), enlargement(28, 28), enlargement(32, 64)
    (4, 2, 1)
    """
    return max(1, -(-LEAST // min(height, width)))


def write_grid(path: Path, images: ImageSet, names: Sequence[str] = (), severities: Sequence[int] = ()) -> None:
    """Draw the first image of a data set as it is and under every corruption; all of them unless some are named.

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
    for place, name in enumerate(names):
        left, top = (place // lines) * wide + 2 * GAP, (place % lines) * high + GAP
        words = f"{name.replace('_', ' ')}: clean, severity {', '.join(map(str, severities))}"
        pen.text((left, top), words, fill="black", font=font)
        for column, tile in enumerate([clean, *(corrupt(clean, name, severity, 0) for severity in severities)]):
            # Enlarged without smoothing, so that every pixel a network sees can be seen.
            seen = to_image(torch.from_numpy(np.array(tile))).convert("RGB")
            large = seen.resize((TILE, TILE), Image.Resampling.NEAREST)
            picture.paste(large, (left + column * (TILE + GAP), top + LABEL))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


# Corrupted images on disk, so that only the first network pays for them.

CHUNK = 128
SERIAL = 4000
"""so few corrupted images are made before other processes have started"""

Job = tuple[Path, str, int, int, int]
"""file, corruption and severity, and from which image up to which"""


def fingerprint(images: ImageSet) -> str:
    """Names the corrupted images that these images give."""
    digest = sha256(f"1 {version('imagecorruptions-imaug')} {len(images.labels)} {images.shape}".encode())
    for rows in torch.arange(len(images.labels)).split(CHUNK):
        digest.update(images.resized(rows).cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


class CorruptedImages:
    """A data set's images under every corruption asked for, made once and kept in `folder`."""

    def __init__(self, images: ImageSet, folder: Path | None = None) -> None:
        check_channels(images.shape[0])
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
                found = load_pixels(path, (len(self.images.labels), *self.images.shape))
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
        with _workers(self.images, processes or (1 if len(todo) * count < SERIAL else available_cores())) as work:
            for name, severity in todo:
                with write_whole(self.path(name, severity)) as unfinished:
                    np.lib.format.open_memmap(unfinished, "w+", np.uint8, (count, *self.images.shape)).flush()
                    chunks = [(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
                    for done in work([(unfinished, name, severity, *chunk) for chunk in chunks]):
                        advance(done)
                    record = pixel_record(np.load(unfinished, mmap_mode="r"))
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
            yield Batch(self.images.normalise(shown), self.images.labels.cpu()[rows], rows)


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
    clean = images.resized(torch.arange(start, stop)).cpu().numpy()
    kept = np.lib.format.open_memmap(path, "r+")
    for place, image in enumerate(clean, start):
        kept[place] = corrupt(image, name, severity, place)
    return stop - start
