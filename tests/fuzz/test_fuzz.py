"""Whatever is typed or lies in a file: an answer or one line, in time, and nothing written but where it was asked for.

A few hundred cases here, always the same ones; `make fuzz` tries ten thousand.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spacedkd import DataSpec, RunSpec, UserError, load_student, read_spec, train
from spacedkd.cli import main
from spacedkd.cli.overrides import to_spec
from spacedkd.cli.report import report
from spacedkd.config.serialization import to_json
from tests.conftest import TINY
from tests.fuzz import damage
from tests.reporting.fake_evaluations import evaluation
from tests.reporting.fake_runs import FakeArm, write_runs

pytestmark = pytest.mark.filterwarnings("ignore")  # of damaged pictures
CASES = int(os.environ.get("SPACEDKD_FUZZ", "250"))
"""in all"""
SECONDS = 20
"""within which every case must be answered"""


def cases(share: float) -> Callable[[Any], Any]:
    """So many examples of a property as its share of all cases; always the same ones, unless it is a long search."""
    return settings(
        max_examples=max(1, round(share * CASES)),
        derandomize=CASES < 1000,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        print_blob=True,
        suppress_health_check=[*HealthCheck],
    )


class Reached(Exception):
    """Everything was understood, and what would take long would begin now."""


class Hangs(BaseException):
    pass


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a module nobody vouches for; nothing is trained, measured or asked of the network."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "evil.py").write_text("from pathlib import Path; Path('evil-was-here').touch()")

    def reached(*_: object, **__: object) -> NoReturn:
        raise Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
            patch.setenv(name, str(folder / "cache"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patch.setattr("torch.hub.download_url_to_file", reached)
        patch.setattr("spacedkd.training.train._train", reached)
        patch.setattr("spacedkd.training.train.teacher_process", reached)
        patch.setattr("spacedkd.training.forecast.build_state", reached)
        patch.setattr("spacedkd.comparison.scheduler._open_pool", reached)
        patch.setattr("spacedkd.comparison.compare.ProcessPoolExecutor", reached)
        patch.setattr("spacedkd.evaluation.evaluate.measure", reached)
        yield folder


def in_time(call: Callable[[], Any]) -> None:
    """One call, which is interrupted where it has no answer in time."""

    def hangs(_: int, frame: FrameType | None) -> NoReturn:
        raise Hangs(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        call()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def bounded(call: Callable[[], Any]) -> None:
    """One call, in time, that leaves nothing behind where it does not belong."""
    in_time(call)
    assert "evil" not in sys.modules
    assert {path.name for path in Path().iterdir()} <= {"evil.py", "out", "cache", "runs", "given", "evaluations"}


def answered(*words: str) -> None:
    """A command that ends well, or with code 2 and a line."""

    def call() -> None:
        try:
            main(words)
        except Reached:
            pass
        except SystemExit as stop:
            if stop.code not in (0, 2):
                raise AssertionError(f"exit code {stop.code}") from stop

    bounded(call)
    shutil.rmtree("out", ignore_errors=True)


def refused_or_not(call: Callable[[], Any]) -> None:
    """A call that ends well, or with an error that says what was wrong."""

    def caught() -> None:
        with suppress(UserError, Reached):
            call()

    bounded(caught)
    shutil.rmtree("out", ignore_errors=True)


def given_file(name: str, content: bytes) -> str:
    path = Path("given", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def plainly(value: Any) -> bytes:
    return json.dumps(value).encode()


@cases(0.28)
@given(damage.flags_of_a_run())
def test_flags_of_a_run(flags: dict[str, Any]) -> None:
    """Without the parser of the command line, which takes longer than all that follows."""
    refused_or_not(lambda: train(to_spec(flags), "out"))


@cases(0.02)
@given(damage.flags_of_a_run(), st.booleans())
def test_words_of_a_run(flags: dict[str, Any], plan: bool) -> None:
    answered("train", "--out", "out", *damage.words_of(flags), *["--plan"] * plan)


@cases(0.01)
@given(damage.flags_of_a_run(), damage.flags_of_a_run(), damage.WORD, st.booleans())
def test_words_of_a_comparison(flags: dict[str, Any], own: dict[str, Any], name: str, plan: bool) -> None:
    arm = f"{name}: {shlex.join(damage.words_of(own))}"
    every = [*damage.words_of(flags), "--arm", arm, "--arm", "b: --method kd"]
    answered("compare", "--out", "out", *every, *["--plan"] * plan)


@cases(0.01)
@given(st.lists(damage.WORD, max_size=4), st.sampled_from(["train", "compare", "evaluate", "report", "list", ""]))
def test_any_words(words: list[str], verb: str) -> None:
    if not any(word.startswith("/") for word in words):
        answered(verb, *words)


SPEC = to_json(TINY)


@cases(0.23)
@given(damage.damaged(SPEC))
def test_a_spec(plain: Any) -> None:
    file = given_file("spec.json", plainly(plain))
    refused_or_not(lambda: train(read_spec(file), "out"))


@cases(0.03)
@given(damage.damaged_bytes(plainly(SPEC)))
def test_a_damaged_spec(content: bytes) -> None:
    file = given_file("spec.json", content)
    refused_or_not(lambda: train(read_spec(file), "out"))


@cases(0.02)
@given(st.dictionaries(st.sampled_from([*SPEC]), damage.PLAIN, max_size=3))
def test_a_spec_in_python(fields: dict[str, Any]) -> None:
    refused_or_not(lambda: RunSpec(**fields))


ARM = FakeArm("a", [0.5, 0.6])
FILES = ("spec.json", "result.json", "journal.jsonl", "evaluation.json", "comparison.json")


@pytest.fixture(scope="module")
def finished(here: Path) -> dict[str, bytes]:
    """The files of a finished run."""
    folder, _ = write_runs(here / "fake", [ARM])
    (folder / "evaluation.json").write_text(json.dumps(evaluation(0.5)))
    main(["report", str(folder)])
    found = {name: (folder / name).read_bytes() for name in FILES}
    shutil.rmtree(here / "fake")
    return found


def reported(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        given_file(f"run/{name}", content)
    refused_or_not(lambda: report((Path("given/run"),), Path("out/page.html")))
    shutil.rmtree("given")


@cases(0.25)
@given(st.data(), st.sampled_from(FILES))
def test_files_of_a_run(finished: dict[str, bytes], data: st.DataObject, name: str) -> None:
    lines = finished[name].splitlines() if name == "journal.jsonl" else [finished[name]]
    number = data.draw(st.integers(0, len(lines) - 1))
    changed = plainly(data.draw(damage.damaged(json.loads(lines[number]))))
    content = b"".join(line + b"\n" for line in [*lines[:number], changed, *lines[number + 1 :]])
    reported({**finished, name: content})


@cases(0.03)
@given(st.data(), st.sampled_from(FILES))
def test_damaged_files_of_a_run(finished: dict[str, bytes], data: st.DataObject, name: str) -> None:
    reported({**finished, name: data.draw(damage.damaged_bytes(finished[name]))})


CONFIG = {
    "architecture": "resnet18_small",
    "num_classes": 10,
    "label_names": ["a", "b"],
    "model_args": {"width": 4},
    "pretrained_cfg": {"mean": [0.1], "std": [0.2], "num_classes": 10, "input_size": [1, 8, 8]},
    "options": {},
}


@cases(0.04)
@given(damage.damaged(CONFIG), damage.damaged_bytes(b"\x08\0\0\0\0\0\0\0{}      "), st.booleans())
def test_a_student(plain: Any, weights: bytes, own: bool) -> None:
    if own and isinstance(plain, dict):
        plain = {**plain, "made_by": plain.pop("architecture", "evil:X")}
    given_file("student/config.json", plainly(plain))
    given_file("student/model.safetensors", weights)

    refused_or_not(lambda: load_student("given/student"))
    taught = {"method": "hinton", "teacher_weights": "given/student"}
    refused_or_not(lambda: train(to_spec(taught), "out"))


def trained(data: str, **changes: Any) -> None:
    """What is done with data until the training begins."""
    refused_or_not(lambda: train(RunSpec(data=DataSpec(data, **changes), epochs=1, batch_size=2), "out"))


@cases(0.03)
@given(damage.arrays())
def test_arrays(found: dict[str, np.ndarray]) -> None:
    Path("given").mkdir(exist_ok=True)
    np.savez("given/a.npz", **found)
    trained("given/a.npz")


@cases(0.03)
@given(st.data(), st.sampled_from(["npz", "parquet"]))
def test_damaged_data_files(data: st.DataObject, kind: str) -> None:
    Path("given").mkdir(exist_ok=True)
    parts = {f"x_{part}": np.zeros((6, 8, 8), np.uint8) for part in ("train", "test")}
    np.savez("given/whole.npz", **parts, **{name.replace("x", "y"): np.arange(6) % 3 for name in parts})
    whole = Path("given/whole.npz").read_bytes() if kind == "npz" else damage.a_table()
    content = data.draw(damage.damaged_bytes(whole))
    trained(given_file(f"a.{kind}", content), test_part=0.5 if kind == "parquet" else None)


@cases(0.02)
@given(st.data(), st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]))
def test_damaged_pictures(data: st.DataObject, form: str) -> None:
    shutil.rmtree("given", ignore_errors=True)
    whole = damage.a_picture(form)
    for number in range(6):
        given_file(f"pictures/{'ab'[number % 2]}/{number}.{form.lower()}", whole)
    given_file(f"pictures/a/0.{form.lower()}", data.draw(damage.damaged_bytes(whole)))
    trained("given/pictures", test_part=0.5, skip_bad=data.draw(st.booleans()))
