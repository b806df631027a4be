"""What people and disks do to words and files: strategies of hypothesis."""

from __future__ import annotations

import io
from typing import Any, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from spacedkd.cli.flags import GROUPS, read

TELLING: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        10**30,
        1.5,
        -0.5,
        1e308,
        float("inf"),
        float("nan"),
        "",
        " ",
        "\0",
        "é",
        "x" * 300,
    ),
    *(
        "1ep",
        "1.5ep",
        "2st",
        "50%",
        "0ep",
        "-1st",
        "1e99ep",
        "online",
        "offline",
        "soon",
        "evil:X",
        "os:system",
        ":",
        "a:",
    ),
    *(
        "..",
        "../..",
        "/dev/null",
        "nowhere",
        "runs",
        "digits",
        "kd",
        "none",
        "self-kd",
        "takd",
        "cosine",
        "adamw",
        "auto",
    ),
    *("resnet18_small", "resnet18", "vit_tiny_patch16_224", "student", "teacher", "test", "final", "spaced", "window"),
    *([], {}, [[]], {"kind": "spaced"}, {"kind": "evil:X"}, {"name": "evil:X"}, {"source": "evil:X"}),
]
SCALAR = st.sampled_from(TELLING) | st.integers() | st.floats() | st.text(max_size=6)
PLAIN = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn, plain: Any) -> Any:
    """What JSON holds, with up to three places changed, removed or added."""
    for _ in range(draw(st.integers(1, 3))):
        plain = _damage(draw, plain)
    return plain


def _damage(draw: st.DrawFn, plain: Any) -> Any:
    if not isinstance(plain, dict | list) or not plain or draw(st.integers(0, 5)) == 0:
        return draw(PLAIN)
    if isinstance(plain, list):
        place = draw(st.integers(0, len(plain) - 1))
        return [*plain[:place], _damage(draw, plain[place]), *plain[place + 1 :]]
    key = draw(st.sampled_from([*plain]))
    if draw(st.integers(0, 5)) == 0:
        return {name: value for name, value in plain.items() if name != key}
    if draw(st.integers(0, 9)) == 0:
        return {**plain, draw(st.text(max_size=6)): draw(PLAIN)}
    return {**plain, key: _damage(draw, plain[key])}


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file that was cut, of which some bytes are others, or that is something else altogether."""
    kind = draw(st.sampled_from(["cut", "bytes", "other", "empty"]))
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    if kind == "bytes":
        changed = bytearray(whole)
        for _ in range(draw(st.integers(1, 8))):
            changed[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    return draw(st.binary(max_size=200)) if kind == "other" else b""


# What would take long, or asks for other machines, is not tried; it is refused, or not, elsewhere.
_LEFT_OUT = (
    "spec",
    "recipe",
    "nodes",
    "devices",
    "strategy",
    "compile",
    "pipeline",
    "root",
    "workers",
    "network",
    "teacher",
)
FLAGS = [one for group in GROUPS.values() for one in group if one.name not in _LEFT_OUT]
NETWORKS = ["resnet18_small", "resnet20x4", "resnt18", "nowhere:make", "", "vit_tiny_patch16_224"]


@st.composite
def flags_of_a_run(draw: st.DrawFn) -> dict[str, Any]:
    """Flags of a run, some of them good, as they are when they have been read."""
    found: dict[str, Any] = {"train_limit": 40, "batch_size": 8, "width": 4}
    for name in draw(st.sets(st.sampled_from(["network", "teacher"]))):
        found[name] = draw(st.sampled_from(NETWORKS))
    for one in draw(st.lists(st.sampled_from(FLAGS), max_size=4)):
        if one.name == "set":
            place = draw(st.sampled_from(["network.", "method.", "data.", "optimizer.", "schedule.", "engine.", ""]))
            found["set"] = (f"{place}{draw(WORD)}={draw(WORD)}",)
        elif one.is_switch:
            found[one.name] = True
        else:
            several = one.kind is tuple or get_origin(one.kind) is tuple
            word = draw(WORD)
            found[one.name] = (word,) if several else read(one.kind, word)
    return found


def words_of(flags: dict[str, Any]) -> list[str]:
    """The same flags as somebody types them."""
    words = []
    for name, value in flags.items():
        words.append("--" + name.replace("_", "-"))
        words += [] if value is True else [str(one) for one in (value if isinstance(value, tuple) else (value,))]
    return words


WORD = (st.sampled_from(TELLING) | st.integers() | st.floats()).map(str) | st.text(max_size=8)
WORD = WORD.map(lambda word: word.replace("\0", "").replace("evil", "nowhere"))  # what is typed is trusted


def a_picture(form: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def a_table() -> bytes:
    file = io.BytesIO()
    picture = a_picture("PNG")
    pq.write_table(pa.table({"image": [picture] * 6, "label": [0, 1, 2] * 2}), file)
    return file.getvalue()


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """What an .npz may hold: of any shape and type, and not always under the right names."""
    found = {}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        kind: Any = draw(st.sampled_from([np.uint8, np.int64, np.float32, bool, complex, "U3", "datetime64[s]"]))
        usual = (6, 8, 8) if name.startswith("x") else (6,)
        shape = draw(st.just(usual) | st.lists(st.integers(0, 7), max_size=5).map(tuple))
        if draw(st.integers(0, 3)):
            shape, kind = usual, np.uint8 if name.startswith("x") else np.int64
        found[name if draw(st.integers(0, 9)) else draw(st.text(min_size=1, max_size=4, alphabet="abxy_"))] = np.resize(
            np.arange(3).astype(kind), shape
        )
    return found
