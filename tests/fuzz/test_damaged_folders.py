"""Commands on the folders of runs in which a file or a folder was damaged, or put in place of by something else.

Every command ends well, or with one line and exit code 2, in time, and nothing outside of the folder changes. A few
dozen cases here, always the same ones; `make fuzz` tries a thousand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spacedkd import DataSpec, RunSpec, Spaced, UserError, load_student, train
from spacedkd.cli import main
from spacedkd.runtime.signals import Stopped
from tests.conftest import TINY
from tests.fuzz import damage
from tests.fuzz.test_fuzz import Reached, cases, in_time

SPEC = replace(
    TINY,
    data=DataSpec("digits", train_limit=40, holdout=0.2),
    schedule=Spaced("1ep"),
    epochs=2,
    ema=0.9,
    log=("csv",),
)
COMPARED = "--data digits --train-limit 20 --network resnet18_small --width 4 --set network.layers=[1,1,1,1]".split()
COMPARED += "--epochs 1 --batch-size 10 --precision 32-true --threads 1 --seeds 1 --jobs 1".split()
COMPARED += ["--arm", "a: --method kd", "--arm", "b: --method kd --interval 1ep", "--out", "given/comparison"]
COMMANDS: dict[str, list[str]] = {
    "status": ["status", "given"],
    "list": ["list", "runs", "given"],
    "report": ["report", "given/whole"],
    "report of a comparison": ["report", "given/comparison"],
    "export": ["export", "given/whole", "--to", "out"],
    "export of the best": ["export", "given/whole", "--to", "out", "--best"],
    "export of the average": ["export", "given/whole", "--to", "out", "--average"],
    "evaluate": ["evaluate", "given/whole", "--threads", "1"],
    "evaluate what is unfinished": ["evaluate", "given/stopped", "--unfinished", "--threads", "1"],
    "resume": ["train", "--resume", "given/stopped"],
    "resume what is finished": ["train", "--resume", "given/whole"],
    "resume what follows another": ["train", "--resume", "given/follower"],
    "restart": ["train", "--resume", "given/stopped", "--restart"],
    "extend": ["train", "--extend", "given/whole", "--epochs", "3", "--out", "out"],
    "compare": ["compare", *COMPARED],
}
"""by name; each reads one of the folders below"""
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders of real runs, made in the place to which they are copied for every case; then nothing is trained."""
    folder, kept = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("kept")

    def reached(*_: object, **__: object) -> NoReturn:
        raise Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
            patch.setenv(name, str(kept / "cache"))
        Path("given").mkdir()
        train(replace(SPEC, record=(SPEC.schedule,)), "given/whole")
        _stopped(SPEC, "given/stopped", turns=12)
        _stopped(replace(SPEC, teacher_path=str(Path("given/whole").resolve())), "given/follower", turns=5)
        main(["evaluate", "given/whole", "--threads", "1"])
        main(["report", "given/whole"])
        main(["compare", *COMPARED])
        for name, command in (("whole", "train"), ("comparison", "compare")):
            line = {"event": "command", "date": "2026-01-01", "line": f"spacedkd {command}"}
            Path("given", name, "commands.jsonl").write_text(json.dumps(line) + "\n")
        Path("given").rename(kept / "given")
        patch.setattr("spacedkd.training.session.training_loop", reached)
        patch.setattr("spacedkd.training.train.teacher_process", reached)
        patch.setattr("spacedkd.comparison.scheduler._open_pool", reached)
        patch.setattr("torch.hub.download_url_to_file", reached)
        yield kept / "given"


def _stopped(spec: RunSpec, folder: str, turns: int) -> None:
    left = iter(range(turns))
    with pytest.raises(Stopped):
        train(spec, folder, stop=lambda: next(left, None) is None)


NASTY = {
    "deep": "[" * 100_000,
    "deep and whole": "[" * 900 + "]" * 900,
    "deep objects": '{"a":' * 5000,
    "digits": "1" * 401,
    "more digits": "-" + "1" * 5000,
    "beyond 64 bits": str(2**64),
    "infinite": "1e999",
    "not a number": "NaN",
    "half a character": '"\\ud800"',
    "twice": '{"a": 1, "a": 2}',
    "control": '"\\u001b[2J\\r\\nspacedkd: all is well\\u202e"',
    "long": '"' + "x" * 100_000 + '"',
    "name of code": '"evil:X"',
    "up": '"../../../outside/x"',
    "nothing": "",
    "no UTF-8": "\udcff\udcfe",
}
"""values that JSON text has in place of others; surrogates stand for bytes"""


@st.composite
def nasty_text(draw: st.DrawFn, whole: bytes) -> bytes:
    """JSON text in which one value, or all of it, is a nasty one."""
    value = NASTY[draw(st.sampled_from([*NASTY]))]
    text = whole.decode(errors="replace")
    places = [found.span() for found in re.finditer(r'(?<=: )("[^"]*"|-?[\d.]+|true|false|null|\[|\{)', text)]
    if places and draw(st.integers(0, 4)):
        start, end = draw(st.sampled_from(places))
        text = text[:start] + value + text[end:]
    else:
        text = value + "\n"
    return text.encode(errors="surrogateescape")


IN_PLACE = (
    *("link", "link to a folder", "link to nothing", "link to itself", "link to /dev/zero"),
    *("fifo", "folder", "sparse"),
)
DAMAGES = ("values", "nasty values", "nasty values", "bytes", *IN_PLACE)


def put_in_place(path: Path, kind: str, outside: Path) -> None:
    """Replace a file or a folder by something that is none, or lies elsewhere."""
    if kind in ("link", "link to a folder"):
        target = outside / path.name
        shutil.move(path, target)
        if target.suffix == ".jsonl":  # of which a run that is resumed would cut off what came later
            target.write_bytes(target.read_bytes() + b'{"event": "later"}\n')
        path.symlink_to((target if kind == "link" else outside).resolve())
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "link to nothing":
        path.symlink_to((outside / "nothing").resolve())
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to /dev/zero":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:  # JSON of a terabyte; what is read to its end, for a digest, is smaller
            file.truncate(1 << 40 if path.suffix == ".json" else 1 << 26)


def damaged_file(draw: Callable[[Any], Any], path: Path, kind: str) -> None:
    whole = path.read_bytes()
    if kind == "values" and path.suffix in (".json", ".jsonl"):
        lines = whole.splitlines() if path.suffix == ".jsonl" else [whole]
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(draw(damage.damaged(json.loads(lines[number])))).encode()
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    elif kind == "nasty values" and path.suffix in (".json", ".jsonl"):
        path.write_bytes(draw(nasty_text(whole)))
    elif whole:
        path.write_bytes(draw(damage.damaged_bytes(whole)))


def contents(folder: Path) -> dict[str, str]:
    """What lies below a folder, by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        target = str(path.readlink()) if path.is_symlink() else ""
        file = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not target else ""
        found[str(path)] = target or file
    return found


def ends_well(words: list[str]) -> None:
    """Run a command, which must end well, or with one line and exit code 2; only a comparison may end with 3."""
    out, err, code = StringIO(), StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            in_time(lambda: main(words))
        except Reached:
            code = -1
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    assert code in ((-1, 0, 2, 3) if words[0] == "compare" else (-1, 0, 2)), (code, err.getvalue())
    errors = [line for line in err.getvalue().splitlines() if line.startswith("spacedkd: ")]
    assert len(errors) == (code == 2) or code == 3, (code, err.getvalue())
    assert not OBEYED.search(out.getvalue() + err.getvalue())
    assert "Traceback" not in err.getvalue()


@cases(0.1)
@given(st.data())
def test_a_damaged_file_or_folder(made: Path, data: st.DataObject) -> None:
    for folder in ("given", "out", "outside"):
        shutil.rmtree(folder, ignore_errors=True)
    command = data.draw(st.sampled_from([*COMMANDS]))
    used = {"report of a comparison": "comparison", "compare": "comparison", "resume": "stopped", "restart": "stopped"}
    used |= {"evaluate what is unfinished": "stopped"}
    name = used.get(command, "whole")
    if command == "resume what follows another":
        name = data.draw(st.sampled_from(["whole", "follower"]))
        shutil.copytree(made / "whole", "given/whole")
        shutil.copytree(made / "follower", "given/follower")
    elif command in ("status", "list"):
        name = data.draw(st.sampled_from(["whole", "stopped"]))
        shutil.copytree(made / name, f"given/{name}")
    else:
        shutil.copytree(made / name, f"given/{name}")
    kind = data.draw(st.sampled_from(DAMAGES))
    outside = Path("outside")
    outside.mkdir()
    every = sorted(path for path in Path("given", name).rglob("*") if path.is_file() or kind in IN_PLACE)
    path = data.draw(st.sampled_from(every))
    if kind in IN_PLACE:
        put_in_place(path, kind, outside)
    else:
        damaged_file(data.draw, path, kind)
    before = contents(outside)
    ends_well(COMMANDS[command])
    assert contents(outside) == before
    assert {one.name for one in Path().iterdir()} <= {"given", "out", "outside"}


@pytest.mark.parametrize(
    "words",
    [
        "train --data digits --method kd --teacher-path loop --out out",
        "train --data digits --method hinton --teacher-weights loop --out out",
        "train --data loop --out out",
        "train --spec loop --out out",
        "train --resume loop",
        "train --out loop",
        "status loop",
        "report loop",
        "evaluate loop",
        "export loop --to out",
    ],
)
def test_a_link_that_leads_to_itself_where_a_folder_is_named(words: str, here: Path) -> None:
    Path("loop").symlink_to("loop")
    ends_well(words.split())
    assert not Path("out").exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_weights_that_are_a_pipe_are_not_waited_for(here: Path) -> None:
    Path("student").mkdir()
    os.mkfifo("student/model.safetensors")
    Path("student/config.json").write_text('{"architecture": "resnet18_small", "num_classes": 3}')
    with pytest.raises(UserError):
        load_student("student")
