"""Code is imported because somebody typed its name, never because a file says it; no folder of data is a library."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context, get_start_method, set_start_method
from operator import attrgetter, is_not
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spacedkd import OptimizerSpec, RunSpec, UserError, evaluate, load_student, read_run, read_spec, train
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.config.serialization import from_json, to_json
from spacedkd.config.spec import NetworkSpec
from spacedkd.data import DatasetStream
from spacedkd.data.stream import View, batches
from spacedkd.models.pretrained import load_weights
from spacedkd.runtime.user_code import Inherited, load_object, mark_names, working_in
from tests.cli.test_bad_input import refused
from tests.conftest import TINY
from tests.reporting.fake_runs import FakeArm, write_runs

OWN = """
from pathlib import Path
Path("imported").write_text("")
import own_layers
from dataclasses import dataclass
from spacedkd.methods import KD


def make(**_):
    return own_layers.layers()


@dataclass(frozen=True)
class Mine(KD):
    pass
"""
TURNS = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Twice:
    times: int = 2

    def turns(self, roles, steps):
        return iter(())
"""
LAYERS = """
from torch import nn


def layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""
SHORT = "--epochs 1 --train-limit 40 --batch-size 8 --precision 32-true --threads 1".split()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of one's own, in which somebody works."""
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "own_layers.py").write_text(LAYERS)
    (tmp_path / "optional_library.py").write_text("from pathlib import Path; Path('imported').write_text('')")
    monkeypatch.chdir(tmp_path)
    for name in ("own_net", "own_layers", "optional_library"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def written(folder: Path, **changes: Any) -> Path:
    """A finished run whose spec.json says something else than what was trained."""
    (run,) = write_runs(folder, [FakeArm("a", [0.5])])
    plain = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps(plain | changes))
    return run


NAMED = {
    "network": {"network": {"name": "own_net:make"}},
    "teacher": {"teacher": {"name": "own_net:make"}},
    "data": {"data": {"source": "own_net:make"}},
    "method": {"method": {"name": "own_net:Mine"}},
    "schedule": {"schedule": {"kind": "own_net:Twice"}},
    "inside": {
        "schedule": {
            "kind": "window",
            "inside": {"kind": "own_net:Twice"},
            "outside": {"kind": "spaced", "interval": "1st"},
            "start": "1ep",
            "length": "1ep",
        }
    },
    "rate": {"rate": {"shape": "own_net:make"}},
    "optimizer": {"optimizer": {"name": "own_net:make"}},
    "option": {
        "method": {"name": "takd", "options": {"assistants": [{"name": "own_net:make", "options": {}}]}},
    },
}


@pytest.mark.parametrize("where", NAMED)
def test_a_report_imports_nothing(where: str, here: Path) -> None:
    written(here / "runs", **NAMED[where])
    main(["report", "runs"])
    assert not (here / "imported").exists()
    assert "own_net" not in sys.modules
    assert to_json(read_spec(here / "runs/arm0/seed0"))["schedule"] is not None


@pytest.mark.parametrize("where", NAMED)
def test_what_a_file_names_is_not_imported(where: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = here / "run"
    run.mkdir()
    (run / "spec.json").write_text(json.dumps(to_json(replace(TINY, optimizer=OptimizerSpec())) | NAMED[where]))
    refused(["train", "--resume", str(run)], capsys)
    for words in (
        ["train", "--spec", str(run), "--out", "new"],
        ["compare", "--spec", str(run), "--out", "new", "--arm", "a: --epochs 2", "--jobs", "1"],
    ):
        assert "spec.json names code, 'own_net:" in refused(words, capsys)
    with pytest.raises(UserError, match="names code, 'own_net:"):
        train(read_spec(run), here / "python")
    assert not (here / "imported").exists()
    assert not (here / "new").exists()


def test_what_was_typed_is_imported_and_what_lies_beside_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the module imports another one; the library that nobody typed is not found at all."""
    main(["train", "--network", "own_net:make", *SHORT, "--method", "none", "--out", "run"])
    assert (here / "imported").exists()
    assert find_spec("optional_library") is None
    assert str(here) not in sys.path
    capsys.readouterr()
    assert "names code, 'own_net:make'" in refused(["evaluate", "run"], capsys)
    (here / "run").rename("own_net:make")  # a folder that is called like code names none
    for words in (["evaluate", "own_net:make"], ["evaluate", "--cache=own_net:make", "own_net:make", "--corruptions"]):
        assert "names code, 'own_net:make'" in refused(words, capsys)
    (here / "own_net:make").rename("run")
    with pytest.raises(UserError, match="names code"):
        evaluate(here / "run")
    main(["evaluate", "run", "--trust-code"])
    main(["train", "--resume", "run", "--trust-code"])  # finished, and said so
    with pytest.raises(UserError, match="config.json names code"):
        load_student(here / "run")
    weights = load_student(here / "run", trust_code=True).state_dict()
    spec = NetworkSpec("own_net:make")
    assert from_json(NetworkSpec, to_json(spec)) == spec
    assert [*weights] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    taught = ["train", *SHORT, "--method", "hinton", "--teacher-weights", "run", "--out", "taught"]
    assert "names code, 'own_net:make'" in refused(taught, capsys)
    with pytest.raises(UserError, match="names code"):
        train(read_run(here / "run").spec, here / "again")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--spec", "own_net:make", "--out", "own_net:make/new"],
        ["train", "--spec=own_net:make", "--set", "network.weights=own_net:make", "--out", "new"],
        ["train", "--method", "hinton", "--teacher-weights", "own_net:make", "--out", "new"],
        ["compare", "--out", "new", "--arm", "own_net: --spec own_net:make"],
    ],
    ids=" ".join,
)
def test_a_folder_that_is_called_like_code_names_none(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(here / "runs", **NAMED["network"]).rename(here / "own_net:make")
    assert "names code, 'own_net:make'" in refused(words, capsys)
    assert not (here / "imported").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--network", "own_net:make"],
        ["--teacher=own_net:make"],
        ["--set", "teacher.name=own_net:make"],
        ["--set", 'method.assistants=[{"name": "own_net:make"}]'],
    ],
    ids=" ".join,
)
def test_the_value_of_a_flag_that_can_name_code_is_typed(words: list[str], here: Path) -> None:
    with working_in(here):
        parse(words)
        assert type(mark_names("own_net:make", here, False)) is str


LIBRARY = """
try:
    import optional_library
except ImportError:
    pass


def lazily(name):
    return __import__(name)
"""


def test_a_library_does_not_look_where_one_works_because_it_was_named(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with --optimizer torch.optim:Adam; a module of one's own does, also when another command follows."""
    installed = tmp_path_factory.mktemp("installed")
    (installed / "some_library.py").write_text(LIBRARY)
    (here / "own_lazy.py").write_text(LIBRARY.replace("optional_library", "json"))
    monkeypatch.syspath_prepend(installed)
    for name in ("some_library", "own_lazy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with working_in(here):
        lazily = load_object("some_library:lazily")
        with pytest.raises(ModuleNotFoundError):
            lazily("optional_library")
        load_object("own_lazy:lazily")
    assert not (here / "imported").exists()
    with working_in(here):
        assert load_object("own_lazy:lazily")("own_layers").layers() is not None
        with pytest.raises(ModuleNotFoundError):
            load_object("some_library:lazily")("optional_library")


def test_other_processes_find_what_was_typed(here: Path) -> None:
    """A schedule of one's own goes to them as a pickle."""
    (here / "own_turns.py").write_text(TURNS)
    with working_in(here):
        schedule = load_object("own_turns:Twice")()
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            assert pool.submit(attrgetter("times"), schedule).exception() is not None
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            assert pool.submit(is_not, Inherited(), schedule).result() is True


DATA = """
import torch


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, row):
        return torch.full((1, 8, 8), row / 32), row % 4
"""


def test_workers_that_are_not_forked_find_a_dataset_of_ones_own(here: Path) -> None:
    """Within the processes of a comparison and of a pipeline, and everywhere on some systems, they start anew."""
    (here / "own_data.py").write_text(DATA)
    started = get_start_method()
    with working_in(here):
        stream = DatasetStream(load_object("own_data:Pictures")(), 16, seed=0)
        set_start_method("spawn", force=True)
        try:
            (batch,) = batches(stream, [[View(0)]], workers=1)
        finally:
            set_start_method(started, force=True)
    assert isinstance(batch.inputs, torch.Tensor)
    assert batch.inputs[:, 0, 0, 0].mul(32).int().tolist() == batch.indices.tolist()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("a pickle has run",)


@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained_cfg_overlay"])
def test_no_weights_run_a_pickle(option: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}, "args": Evil()}, here / "evil.pth")
    value = "evil.pth" if option == "checkpoint_path" else {"file": "evil.pth"}
    network = {
        "name": "resnet18_small",
        "options": {"width": 4, option: value, "pretrained": option != "checkpoint_path"},
    }
    (here / "spec.json").write_text(json.dumps({"network": network, "method": {"name": "none"}, "epochs": 1}))
    said = refused(["train", "--spec", "spec.json", "--out", "run"], capsys)
    assert "weights" in said
    with pytest.raises(UserError, match="no weights that can be read"):
        load_weights(nn.Linear(1, 1), str(here / "evil.pth"), ())
    assert "a pickle has run" not in capsys.readouterr().out


def test_what_is_mistyped_does_not_wait_for_the_hub(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A place in a folder that is here is not asked for elsewhere."""
    (here / "photos" / "cats").mkdir(parents=True)
    assert "in the folder photos 'cast'. Did you mean 'cats'?" in refused(["train", "--data", "photos/cast"], capsys)


def test_python_is_trusted_with_what_it_names_itself(here: Path) -> None:
    spec = RunSpec(network="tests.models.test_user_networks:mlp", data=TINY.data)
    assert type(spec.network.name) is str
    with pytest.raises(UserError, match="Cannot load 'nowhere.at:all'"):
        train(RunSpec(network="nowhere.at:all"), here / "run")
