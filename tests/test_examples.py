"""The examples run and learn."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spacedkd import MethodSpec, RunSpec, SnapshotTeacher, Spaced, Targets, read_spec, seeded_loader, train
from spacedkd.config.serialization import to_json
from tests import forked
from tests.conftest import assert_same_bits, tensors
from tests.training.stopping import assert_same_run

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_every_example_is_tested() -> None:
    tested = {"own_dataset", "own_loop", "own_method", "own_network", "spaced_versus_online", "text_classifier"}
    tested |= {"snapshots_own_loop", "snapshots_segmentation", "snapshots_accelerate", "snapshots_timm"}
    tested |= {"snapshots_lightning", "snapshots_transformers", "snapshots_of_checkpoints", "snapshots_trl"}
    tested |= {"regression", "segmentation", "cached_targets_lm"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_own_loop() -> None:
    accuracy = example("own_loop")["main"]()
    assert min(accuracy.values()) > 0.9


@pytest.mark.parametrize(("name", "least"), [("own_loop", 0.85), ("segmentation", 0.85), ("timm", 0.6)])
def test_snapshots(name: str, least: float, tmp_path: Path) -> None:
    """Teacher and student are two runs; of the pixels that are told apart 71 % are background."""
    assert len((EXAMPLES / f"snapshots_{name}.py").read_text().splitlines()) < 80
    accuracy = example(f"snapshots_{name}")["main"](tmp_path)
    assert accuracy.keys() == {"teacher", "student"}
    assert min(accuracy.values()) > least


def test_cached_targets_of_a_language_model(tmp_path: Path) -> None:
    """The second student has no teacher: it reads the eight likeliest characters of each position."""
    lm = example("cached_targets_lm")
    perplexity = lm["main"](tmp_path)
    assert max(perplexity.values()) < 30 < lm["CLASSES"]
    targets = Targets(tmp_path / "targets")
    assert targets.steps == [*range(lm["STEPS"])]
    teacher = SnapshotTeacher(tmp_path / "teacher", lm["INTERVAL"], lm["network"], total=lm["STEPS"])
    (ids,) = next(iter(seeded_loader(lm["train"], lm["BATCH"], seed=0, steps=range(70, 71))))
    live, cached = teacher.seek(70)(input_ids=ids).logits.softmax(-1), targets.read(70)["logits"].softmax(-1)
    likeliest = live.topk(8).indices
    torch.testing.assert_close(cached.gather(-1, likeliest), live.gather(-1, likeliest), rtol=1e-3, atol=1e-5)
    whole = lm["STEPS"] * ids.numel() * lm["CLASSES"] * 4
    assert sum(file.stat().st_size for file in (tmp_path / "targets").iterdir()) < 0.25 * whole


def test_snapshots_accelerate_stopped_and_started_again(tmp_path: Path) -> None:
    assert len((EXAMPLES / "snapshots_accelerate.py").read_text().splitlines()) < 80
    main, last = example("snapshots_accelerate")["main"], "student/state-300/model.safetensors"
    whole = main(tmp_path / "whole")
    assert min(whole.values()) > 0.85
    for folder in ("teacher", "snapshots"):
        shutil.copytree(tmp_path / "whole" / folder, tmp_path / "stopped" / folder)
    main(tmp_path / "stopped", stop=150)
    assert not (tmp_path / "stopped" / last).exists()
    assert main(tmp_path / "stopped") == whole
    assert_same_bits(*(load_file(tmp_path / name / last) for name in ("whole", "stopped")))


class Cut(Exception):
    """The end of a run that was not to end."""


class Counting:
    """Counts what begins, and cuts the run off after the most it may."""

    def __init__(self, most: int) -> None:
        self.begun, self.most = 0, most

    def begin(self, *_: Any, **__: Any) -> None:
        if self.begun == self.most:
            raise Cut
        self.begun += 1


# Lightning's own, with this version of torch, and when it goes on.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_snapshots_lightning_stopped_and_started_again(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    assert len((EXAMPLES / "snapshots_lightning.py").read_text().splitlines()) < 80

    class Batches(Counting, lightning.Callback):  # type: ignore[misc, name-defined]
        on_train_batch_start = Counting.begin

    main = example("snapshots_lightning")["main"]
    with pytest.raises(Cut):
        main(tmp_path, Batches(285 + 120))
    again = Batches(1000)
    accuracy = main(tmp_path, again)
    # Both go on from their last checkpoints, one every 50 steps; what the teacher leaves twice must be the same bits.
    assert again.begun == (285 - 250) + (285 - 100)
    assert min(accuracy.values()) > 0.85


def test_snapshots_transformers_stopped_and_started_again(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert len((EXAMPLES / "snapshots_transformers.py").read_text().splitlines()) < 80

    class Steps(Counting, transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        on_step_begin = Counting.begin

    module = example("snapshots_transformers")
    main, steps = module["main"], module["STEPS"]
    with pytest.raises(Cut):
        main(tmp_path, Steps(steps + 120))
    again = Steps(1000)
    accuracy = main(tmp_path, again)
    assert again.begun == steps - 100
    assert min(accuracy.values()) > 0.6, (
        "always saying the most frequent part would be right less than half of the time"
    )


def test_snapshots_of_checkpoints_train_no_teacher(tmp_path: Path) -> None:
    """Of a training that is over; a second student learns the same from it."""
    pytest.importorskip("transformers")
    main = example("snapshots_of_checkpoints")["main"]
    first = main(tmp_path)
    assert min(first.values()) > 0.85
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "long ago").rglob("*")}
    assert main(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "long ago").rglob("*")} == before


@pytest.mark.filterwarnings("ignore::UserWarning")  # TRL's own
def test_snapshots_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    assert len((EXAMPLES / "snapshots_trl.py").read_text().splitlines()) < 90
    module = example("snapshots_trl")

    class Notes(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if teachers:
                updates.append(teachers[-1].updates)

    updates: list[int | None] = []
    teachers: list[Any] = []
    spacing = module["Spacing"]

    class Noting(spacing):  # type: ignore[misc, valid-type]
        def teacher(self, *given: Any, **options: Any) -> Any:
            teachers.append(super().teacher(*given, **options))
            return teachers[-1]

    module["main"].__globals__["Spacing"] = Noting
    nats = module["main"](tmp_path, Notes())
    assert updates == [15] * 15 + [30] * 15 + [45] * 15 + [60] * 15
    assert max(nats.values()) < 7, "who guesses has log(1928) = 7.6"


def test_spaced_versus_online(tmp_path: Path) -> None:
    accuracy = example("spaced_versus_online")["main"](tmp_path, epochs=2)
    assert accuracy.keys() == {"online", "spaced"}


def test_own_network_killed_and_started_again(tmp_path: Path) -> None:
    """SIGKILL in the middle; the same command once more ends with the bits of a run that was never stopped."""
    script, killed = EXAMPLES / "own_network.py", tmp_path / "killed"
    assert forked.run(script, tmp_path / "whole").returncode == 0
    process = forked.Command(script, killed)
    while not (killed / "checkpoint" / "latest.safetensors").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "result.json").exists()
    again = forked.run(script, killed)
    assert again.returncode == 0, again.stderr
    assert_same_run(tmp_path / "whole", killed)
    assert float(again.stdout.partition(": ")[2].partition(" %")[0]) > 85


def test_own_dataset_is_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    main = example("own_dataset")["main"]
    for workers in (0, 2):
        run = main(tmp_path / str(workers), epochs=2, workers=workers)
    assert run.score() > 0.5
    assert_same_bits(tensors(tmp_path / "0"), tensors(tmp_path / "2"))


@pytest.mark.parametrize(("name", "epochs", "least"), [("regression", 8, 0.5), ("segmentation", 5, 0.45)])
def test_other_tasks(name: str, epochs: float, least: float, tmp_path: Path) -> None:
    """R² is 0 where the answer is always the mean; the mean IoU is below 1/3 where it is always background."""
    run = example(name)["main"](tmp_path / "run", epochs)
    assert run.score() > least


def test_text_classifier(tmp_path: Path) -> None:
    run = example("text_classifier")["main"](tmp_path / "run")
    assert run.score() > 0.7, "always saying the most frequent part would be right less than half of the time"


def test_own_method(tmp_path: Path, tiny: RunSpec) -> None:
    """Passed to train(), and named on the command line as whoever wrote it would, from the folder it lies in."""
    (tmp_path / "work").mkdir()
    source = (EXAMPLES / "own_method.py").read_text()
    assert len(source.splitlines()) < 50
    (tmp_path / "work" / "own_method.py").write_text(source)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(to_json(replace(tiny, epochs=1))))
    command = [str(Path(sys.executable).with_name("spacedkd")), "train", "--spec", str(spec), "--out", "run"]
    own = ["--method", "own_method:Confidence", "--interval", "2st", "--set", "method.strength=0.8"]
    subprocess.run([*command, *own], check=True, cwd=tmp_path / "work", stdout=subprocess.DEVNULL)
    typed = read_spec(tmp_path / "work" / "run")
    assert typed.method == MethodSpec("own_method:Confidence", {"strength": 0.8})

    method = example("own_method")["Confidence"](strength=0.8)
    train(replace(tiny, epochs=1, schedule=Spaced("2st")), tmp_path / "passed", method=method)
    assert_same_bits(tensors(tmp_path / "work" / "run"), tensors(tmp_path / "passed"))
