"""MNIST-1D: signals of 40 points in ten classes, generated in any number.

Greydanus and Kobak, "Scaling down deep learning with MNIST-1D", arXiv 2011.14439. Each digit has a template of 12
points. An item is the template of its digit

    padded with 36 to 60 zeros, stretched to 72 points, scaled by 0.8 to 1.2, and shifted around by 0 to 47 points;
    where it was padded, with correlated noise (0.25, smoothed by a Gaussian of deviation 2) in place of the zeros;
    with noise (0.02) everywhere, sheared by up to 0.375 either way, and sampled at 40 points.

These are the defaults of the package `mnist1d`, whose very items these are not: they come from other generators. The
package divides by the mean and deviation of the set it has made; here these are constants, those of a million items,
so that an item stays what it is however many there are. Items are generated in blocks of 1000 from fixed seeds, every
ten of them one of each class: 4000 to train on and 1000 to test on, unless a spec says otherwise.
"""

from __future__ import annotations

import numpy as np

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import check_fits
from spacedkd.data.reader import RawDataset, RawSplit, Reader
from spacedkd.runtime.seeds import seed_for

TRAIN_ITEMS, TEST_ITEMS = 4000, 1000
BLOCK = 1000
CLASSES = "0123456789"
_TEMPLATES = np.array(
    [
        [5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5],
        [5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5],
        [5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5],
        [5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5],
        [5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5],
        [5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5],
        [5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5],
        [5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5],
    ]
)
_POINTS, _LENGTH, _SAMPLES = 12, 72, 40
"""lengths of a template, of a signal while it is made, and of an item"""
_MEAN, _STD = -0.00607, 0.15470
"""mean and standard deviation of the points of a million items before this normalisation"""


def generate(count: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` items of a split as float32 [count, 40], and their classes, [count].

    >>> items, labels = generate(30, "test")
    >>> longer, _ = generate(2500, "test")
    >>> items.shape, bool((items == longer[:30]).all())
    ((30, 40), True)
    """
    blocks = [_block(split, number) for number in range(-(-count // BLOCK))]
    items, labels = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
    return items, labels


def _block(split: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    seed = seed_for(0, "mnist1d", split, number)
    # A legacy generator, because numpy promises its stream for good: the data must not change with numpy.
    rng = np.random.RandomState([seed >> 32, seed & 0xFFFFFFFF])
    labels = rng.random_sample((BLOCK // len(CLASSES), len(CLASSES))).argsort(1).ravel()
    return ((_signals(labels, rng) - _MEAN) / _STD).astype(np.float32), labels


def _signals(labels: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return a new signal for each class, float64 [B, 40]; without BLAS, whose sums differ between machines."""
    count = len(labels)
    padding, shift = rng.randint(36, 61, count), rng.randint(0, 48, count)
    scale, shear = 0.8 + 0.4 * rng.random_sample(count), 0.75 * (rng.random_sample(count) - 0.5)
    # The position of every point in its padded template, before the signal was shifted around.
    point = (np.arange(_LENGTH) - shift[:, None]) % _LENGTH
    position = point * ((_POINTS + padding - 1) / (_LENGTH - 1))[:, None]
    below = position.astype(np.int64)
    padded = np.pad(_normalised_templates(), ((0, 0), (0, _LENGTH + 1 - _POINTS)))
    start, end = padded[labels[:, None], below], padded[labels[:, None], below + 1]
    signals = scale[:, None] * (start + (end - start) * (position - below))
    noise = _smooth(0.25 * rng.standard_normal((count, _LENGTH)))
    signals = np.where(position < _POINTS, signals, noise) + 0.02 * rng.standard_normal((count, _LENGTH))
    signals -= shear[:, None] * np.linspace(-0.5, 0.5, _LENGTH)
    position = np.linspace(0, _LENGTH - 1, _SAMPLES)
    below = position.astype(np.int64).clip(max=_LENGTH - 2)
    start, end = signals[:, below], signals[:, below + 1]
    sampled: np.ndarray = start + (end - start) * (position - below)
    return sampled


def _normalised_templates() -> np.ndarray:
    """Return the templates [10, 12] with one deviation, beginning and ending at 0."""
    centred = _TEMPLATES - _TEMPLATES.mean(1, keepdims=True)
    scaled = centred / centred.std(1, keepdims=True)
    templates: np.ndarray = (scaled - scaled[:, :1]) / 6
    return templates


def _smooth(noise: np.ndarray) -> np.ndarray:
    """Return rows smoothed by a Gaussian of deviation 2, cut off at 8 points; rows are mirrored at their ends."""
    offsets = np.arange(-8, 9)
    weights = np.exp(-(offsets**2) / 8)
    weights /= weights.sum()
    mirrored = np.pad(noise, ((0, 0), (8, 8)), mode="symmetric")
    smoothed = np.zeros_like(noise)
    for start, weight in enumerate(weights):
        smoothed += weight * mirrored[:, start : start + noise.shape[1]]
    return smoothed


def read_mnist1d(spec: DataSpec) -> RawDataset:
    """Generate as many items as the spec wants."""
    train_count, test_count = spec.train_items or TRAIN_ITEMS, spec.test_items or TEST_ITEMS
    check_fits(spec.source, 4 * _SAMPLES * (train_count + test_count), "signals")
    (train, train_labels), (test, test_labels) = generate(train_count, "train"), generate(test_count, "test")
    return RawDataset(
        spec.source,
        RawSplit("training", train[:, None, :, None], train_labels),
        RawSplit("test", test[:, None, :, None], test_labels),
        CLASSES,
    )


MNIST1D = Reader(
    name="mnist1d",
    about="MNIST-1D: signals of 40 points, 10 classes, 4000 + 1000 items or as many as you like; generated",
    docs="generated from its published description; `--train-items` and `--test-items` say how many items",
    read=read_mnist1d,
    options=("train_items", "test_items"),
    signals=True,
)
