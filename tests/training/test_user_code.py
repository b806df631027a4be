"""User code that raises, or gives what it may not: one line with its name, its place and the step; the cause stays."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spacedkd import NetworkSpec, OptimizerSpec, UserError, train
from spacedkd.cli import main
from spacedkd.methods import KD
from spacedkd.runtime import user_code
from spacedkd.runtime.errors import OutOfMemory, UserCodeError, in_python, on_command_line
from spacedkd.training.guard import way_out
from tests import forked
from tests.conftest import TINY

SHORT = replace(TINY, epochs=1)
OWN_NETWORK = replace(SHORT, network=NetworkSpec())
HERE = Path(__file__)


class Boom(Exception):
    """Raised by no code but that of these tests."""


def line_of(mark: str) -> int:
    """The line of this file that ends with a mark."""
    return next(number for number, text in enumerate(HERE.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.updates = 0

    def forward(self, images: Tensor) -> Any:
        logits = self.linear(images.flatten(1))
        if self.training:
            self.updates += 1
        return self.changed(logits) if self.training and self.updates > 3 else logits

    def changed(self, logits: Tensor) -> Any:
        raise Boom("at the fourth")  # network


class Fewer(Net):
    def changed(self, logits: Tensor) -> Any:
        return logits[:, :5]


class Nothing(Net):
    def changed(self, logits: Tensor) -> Any:
        return None


class Large(Net):
    def changed(self, logits: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Evaluated(Net):
    def forward(self, images: Tensor) -> Any:
        if not self.training and len(images) > TINY.batch_size:
            raise Boom  # evaluated
        return self.linear(images.flatten(1))


class Stepping(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise Boom("no step")  # optimizer


class Raises:
    """A logger."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        return

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        if step == 2:
            raise Boom  # logger


@dataclass(frozen=True)
class Mine(KD):
    what: str = "raises"

    def losses(self, *given: Any) -> Any:
        step = given[3].step
        if step < 2:
            return super().losses(*given)
        given[1]["student"].eval()
        found: Any = {
            "nothing": None,
            "floats": {"label": 1.0},
            "none": {},
            "vectors": {"label": torch.ones(3, requires_grad=True)},
            "constant": {"label": torch.tensor(1.0)},
        }
        if self.what not in found:
            raise Boom  # losses
        return found[self.what]


@dataclass(frozen=True)
class Misused(KD):
    """Calls a model of ours with what it does not take."""

    def losses(self, role: str, models: Any, batch: Any, progress: Any) -> Any:
        return {"label": models[role](batch)}  # misused


@dataclass(frozen=True)
class Built(KD):
    def models(self, given: Any) -> Any:
        raise Boom  # models


@dataclass(frozen=True)
class Turns:
    def turns(self, roles: Any, steps: range) -> Any:
        yield from ((role, step) for step in steps[:2] for role in roles)
        raise Boom  # turns


def network_fails() -> nn.Module:
    raise Boom  # factory


def later(step: int) -> float:
    if step == 4:
        raise Boom  # rate
    return 0.1


RAISED: dict[str, tuple[dict[str, Any], str]] = {
    "factory": ({"network": network_fails}, "network_fails fails"),
    "network": ({"network": Net}, "Net.changed fails at step 3 of the teacher"),
    "evaluated": ({"network": Evaluated}, "Evaluated.forward fails at step 4 of the teacher"),
    "optimizer": ({"optimizer": lambda named: Stepping(dict(named).values(), 0.1)}, "Stepping.step fails at step 0 of"),
    "rate": ({"lr": later}, "later fails at step 4"),
    "losses": ({"method": Mine()}, "Mine.losses fails at step 2 of the teacher"),
    "misused": ({"method": Misused()}, "Misused.losses fails at step 0 of the teacher"),
    "models": ({"method": Built()}, "Built.models fails"),
    "turns": ({"schedule": Turns()}, "Turns fails at turn 4"),
    "logger": ({"loggers": [Raises()]}, "Logger Raises fails at step 2 of the teacher"),
}


def run(given: dict[str, Any], folder: Path) -> Any:
    spec = replace(SHORT, schedule=given["schedule"]) if "schedule" in given else SHORT
    spec = replace(spec, network=NetworkSpec()) if "network" in given else spec
    spec = replace(spec, optimizer=OptimizerSpec()) if {"optimizer", "lr"} & given.keys() else spec
    return train(spec, folder, **{name: one for name, one in given.items() if name != "schedule"})


@pytest.mark.parametrize("mark", RAISED)
def test_what_raises_is_one_line_with_name_place_and_step(mark: str, tmp_path: Path) -> None:
    given, said = RAISED[mark]
    with pytest.raises(UserCodeError) as error:
        run(given, tmp_path / "run")
    text = str(error.value)
    assert said in text
    assert f"{HERE.name}:{line_of(mark)}" in text
    assert "\n" not in text
    assert mark == "misused" or isinstance(error.value.__cause__, Boom)
    assert error.value.__cause__ is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"network": Fewer}, r"Network Fewer gives logits \[8, 5\], and gave 10 for each item before"),
        ({"network": Nothing}, "Network Nothing returns NoneType"),
        ({"method": Mine(what="nothing")}, "at step 2 it gives None"),
        ({"method": Mine(what="floats")}, "{'label': 'float'}"),
        ({"method": Mine(what="none")}, "at step 2 it gives {}"),
        ({"method": Mine(what="vectors")}, r"shape \[3\]"),
        ({"method": Mine(what="constant")}, "at step 2 do not depend on its weights"),
        ({"network": Net()}, "network is a Net object.*give the class or a function that makes it"),
        ({"teacher": Net()}, "teacher is a Net object"),
    ],
)
def test_what_gives_something_else_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as error:
        run(given, tmp_path / "run")
    assert "\n" not in str(error.value)


def test_memory_that_is_short_has_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"Out of memory at step 3 of the teacher.*Lower batch_size \(8\)") as error:
        train(OWN_NETWORK, tmp_path / "run", network=Large)
    assert isinstance(error.value.__cause__, torch.OutOfMemoryError)


def test_a_callback_raises_what_it_raises(tmp_path: Path) -> None:
    def callback(moment: Any) -> None:
        raise Boom

    with pytest.raises(Boom):
        train(SHORT, tmp_path / "run", callback=callback)


def test_an_interrupt_is_none_of_this(tmp_path: Path) -> None:
    class Interrupted(Net):
        def changed(self, logits: Tensor) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(OWN_NETWORK, tmp_path / "run", network=Interrupted)


def written_in(file: Path) -> Any:
    """A function that fails, as if it stood in this file."""
    names: dict[str, Any] = {}
    exec(compile("def fails(*given): raise KeyError('there')", str(file), "exec"), names)
    return names["fails"]


OURS = Path(user_code.__file__).parents[1] / "somewhere.py"


def test_what_we_raise_stays_ours() -> None:
    with pytest.raises(KeyError, match="there"):
        user_code.user_code()(written_in(OURS))()
    with pytest.raises(KeyError, match="there"):
        user_code.user_code()(written_in(Path(torch.__file__)))()
    with pytest.raises(UserCodeError, match=r"fails fails at step 3: KeyError: 'there' \(/home/me/mine.py:1\)"):
        user_code.user_code(lambda: "at step 3")(written_in(Path("/home/me/mine.py")))()
    beside = OURS.parent.with_name("spacedkd_mine") / "mine.py"  # which only begins like our folder
    with pytest.raises(UserCodeError, match="fails fails: KeyError"):
        user_code.user_code()(written_in(beside))()


def test_what_an_optimizer_asks_of_us_is_not_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                next(iter(self.param_groups[0]["params"])).add_(1)  # so that losses are computed anew
            return closure()

    broken = compile(
        "def losses(*given): raise KeyError('ours')", str(Path(user_code.__file__).parent / "x.py"), "exec"
    )
    ours: dict[str, Any] = {}
    exec(broken, ours)
    whole, asked = KD.losses, []

    def losses(*given: Any) -> Any:
        asked.append(1)
        return whole(*given) if len(asked) == 1 else written_in(OURS)()

    losses.__code__ = losses.__code__.replace(co_filename=str(OURS))
    monkeypatch.setattr(KD, "losses", losses)
    with pytest.raises(KeyError, match="there"):
        run({"optimizer": lambda named: Asking(dict(named).values(), 0.1)}, tmp_path / "run")


def test_an_error_keeps_its_cause_on_the_way_to_another_process() -> None:
    with pytest.raises(UserCodeError) as error, user_code.user_code():
        network_fails()
    there = pickle.loads(pickle.dumps(error.value))
    assert (type(there), str(there)) == (UserCodeError, str(error.value))
    assert "raise Boom  # factory" in str(there.__cause__)


OWN = """
from torch import nn

def make():
    raise LookupError("no such width")
"""


def test_the_command_line_says_it_in_one_line_and_shows_the_traceback_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("raising_of_mine.py").write_text(OWN)
    words = ["train", "--data", "digits", "--network", "raising_of_mine:make", "--out", "run"]

    def ended() -> str:
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
        return capsys.readouterr().err

    line = ended()
    assert line.count("\n") == 1
    assert "LookupError: no such width (raising_of_mine.py:5). SPACEDKD_TRACEBACK=1 shows the traceback." in line
    monkeypatch.setenv("SPACEDKD_TRACEBACK", "1")
    shown = ended()
    assert shown.startswith("Traceback")
    assert 'raise LookupError("no such width")' in shown
    assert not Path("run").exists()


def test_an_import_that_fails_is_named_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unfinished_of_mine.py").write_text("import os\nwidth = os.environ['NO_SUCH_WIDTH']\n")
    with pytest.raises(SystemExit):
        main(["train", "--network", "unfinished_of_mine:make", "--out", "run"])
    line = capsys.readouterr().err
    assert "cannot be imported: KeyError: 'NO_SUCH_WIDTH' (unfinished_of_mine.py:2)" in line


@pytest.mark.parametrize(
    ("line", "python"),
    [
        (
            "Lower --lr (0.1), or --clip 1; --on-nonfinite skip leaves",
            "Lower optimizer.lr (0.1), or optimizer.clip=1; on_nonfinite='skip' leaves",
        ),
        ("give --devices too", "give engine.devices too"),
        ("Use --method kd.", "Use method='kd'."),
        (
            "leave out --crop, --flip and --rotate",
            "leave out data.augment.crop, data.augment.flip=True and data.augment.rotate",
        ),
        ("use --drop-last or another --batch-size.", "use data.drop_last=True or another batch_size."),
        ("--set network.input_size=224 (teacher.", "network.input_size=224 (teacher."),
        (
            "Resume with: spacedkd train --resume runs/x --restart",
            "Resume with: spacedkd train --resume runs/x --restart",
        ),
        ("say --trust-code.", "say trust_code=True."),
        ("no flag --bogus of 'runs/--lr'", "no flag --bogus of 'runs/--lr'"),
    ],
)
def test_python_is_told_pythons_names(line: str, python: str) -> None:
    assert in_python(line) == str(UserError(line)) == python
    assert in_python(python) == python
    with on_command_line():
        assert str(UserError(line)) == line


def test_a_way_out_can_be_taken_in_python_and_typed() -> None:
    error = UserError(way_out(TINY))
    assert "optimizer.lr (0.02)" in str(error)
    assert "--" not in str(error)
    with on_command_line():
        assert "--lr (0.02)" in str(error)


def test_processes_of_a_command_name_flags_too(tmp_path: Path) -> None:
    """A run of a comparison is trained in a process of its own."""
    script = "from spacedkd.runtime.errors import UserError; print(UserError('Lower --lr.'))"
    said = subprocess.run(
        [sys.executable, "-c", f"import spacedkd.config.spec; {script}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ},
    )
    assert said.stdout == "Lower optimizer.lr.\n"
    with on_command_line():
        child = pickle.dumps((user_code.Inherited(), 1))
    code = f"import pickle; pickle.loads({child!r}); import spacedkd.config.spec; {script}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert said.stdout == "Lower --lr.\n"


WITH_WORKERS = """
import os
import torch
from torch import nn
from spacedkd import EngineSpec, NetworkSpec, RunSpec, train
from spacedkd.methods import KD
from spacedkd.runtime import user_code

class Data(torch.utils.data.Dataset):
    def __init__(self, fails=None):
        self.fails = fails

    def __len__(self):
        return 40

    def __getitem__(self, row):
        if row == 17 and self.fails == "stops":
            raise StopIteration
        if row == 17 and self.fails == "ends":
            os._exit(5)
        return torch.zeros(1, 8, 8), row % 4

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 4))

def ours(*given):
    raise KeyError("ours")

if __name__ == "__main__":
    how, workers = {how!r}, {workers}
    if how == "ours":
        ours.__code__ = ours.__code__.replace(co_filename=user_code.__file__)
        KD.losses = ours
    spec = RunSpec(network=NetworkSpec(), epochs=1, batch_size=8, engine=EngineSpec(workers=workers))
    train(spec, "run", network=Net, data=(Data(how), Data()))
"""


@pytest.mark.parametrize(
    ("how", "workers", "said"),
    [
        ("ours", 1, "KeyError: 'ours'"),
        ("stops", 0, "UserCodeError: Item 17 of own:Data fails at step 1: StopIteration (own.py:"),
        ("stops", 1, "UserCodeError: Item 17 of own:Data fails at step 1: StopIteration (own.py:"),
        ("ends", 1, "UserError: A process that prepares batches has ended"),
    ],
)
def test_a_process_with_workers_ends_whatever_is_raised(how: str, workers: int, said: str, tmp_path: Path) -> None:
    script = WITH_WORKERS.replace("{how!r}", repr(how)).replace("{workers}", str(workers))
    (tmp_path / "own.py").write_text(script)
    if workers == 0 or how == "ends":
        ended = forked.run("own.py", cwd=tmp_path)
    else:  # the end of the interpreter waits for processes, and how they report an error depends on how they started
        ended = subprocess.run([sys.executable, "own.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ended.returncode == 1
    assert said in ended.stderr.splitlines()[-1]
