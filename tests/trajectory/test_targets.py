"""A student that reads cached targets learns the bits that it learns from the teacher itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from spacedkd import (
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    Offline,
    Online,
    OptimizerSpec,
    RunSpec,
    Spaced,
    Targets,
    UserError,
    forecast,
    read_spec,
    train,
)
from spacedkd.cli import main
from spacedkd.methods import KD
from spacedkd.methods.losses import kl
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import TargetsGone
from spacedkd.schedule import Window
from spacedkd.training.trained_models import load_run
from spacedkd.trajectory.replay import read_oldest_needed
from spacedkd.trajectory.targets import parse_form
from tests.conftest import TINY, assert_same_bits, tensors
from tests.methods.whole_runs import NETWORKS
from tests.training.stopping import train_in_parts, train_until

SHORT = replace(TINY, epochs=2, schedule=Spaced("1.5ep"))
"""Ten steps."""


def assert_same_student(one: Path, other: Path) -> None:
    """Compare student, journal and result; what was computed in a run is its own."""
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
        result["plan"].pop("computed_here", None)
    assert results[0] == results[1]


def check_write_and_read(folder: Path, spec: RunSpec, **reader: Any) -> None:
    """Train alone, as a writer and as a reader, and compare."""
    train(spec, folder / "alone")
    train(replace(spec, cache_targets=True), folder / "writes")
    assert_same_student(folder / "alone", folder / "writes")
    run = train(replace(spec, targets_path=folder / "writes"), folder / "reads")
    assert_same_student(folder / "alone", folder / "reads")
    assert not [name for name in tensors(folder / "reads") if name.split("/")[1] == "teacher"]
    assert run.computed["forward_passes"] == run.computed["updates"] * spec.accumulate
    assert run.cost["forward_passes"] > run.computed["forward_passes"]


@pytest.mark.parametrize(
    "change",
    [
        {"method": MethodSpec("kd")},
        {"method": MethodSpec("dkd"), "schedule": Online()},
        {"method": MethodSpec("ctkd"), "schedule": Offline()},
        {"method": MethodSpec("fitnet")},
        {"method": MethodSpec("fitnet"), "network": NETWORKS["vit"]},
        {"method": MethodSpec("eskd", {"teacher_for": "50%", "distil_for": "70%"})},
        {"method": MethodSpec("dlb", {"variant": "taught"})},
        {"accumulate": 3},
        {"schedule": Window(Spaced("1ep"), Online(), "1ep", stop="2ep")},
        {"teacher_average": "poly:2"},
        {"engine": EngineSpec(threads=1, workers=1)},
        {"precision": "bf16-mixed"},
        {"precision": "64-true"},
        {"on_nonfinite": "skip", "data": replace(TINY.data, mixup=0.4)},
        {"teacher": NetworkSpec("resnet18_small", {"width": 8, "layers": [1, 1, 1, 1]})},
    ],
    ids=str,
)
def test_cached_targets_give_the_bits_of_the_teacher(tmp_path: Path, change: Mapping[str, Any]) -> None:
    check_write_and_read(tmp_path, replace(SHORT, **change))


def test_a_trained_teacher_that_never_learns(tmp_path: Path) -> None:
    train(replace(SHORT, method="none", schedule=None), tmp_path / "teacher")
    teacher = replace(SHORT.network, weights=str(tmp_path / "teacher"))
    spec = replace(SHORT, schedule=None, teacher=teacher, method=MethodSpec("kd", {"teacher_learns": False}))
    check_write_and_read(tmp_path, spec)
    other = replace(spec, optimizer=OptimizerSpec(lr=0.01), label_smoothing=0.1)
    train(other, tmp_path / "other alone")
    train(replace(other, targets_path=tmp_path / "writes"), tmp_path / "other")
    assert_same_student(tmp_path / "other alone", tmp_path / "other")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets") / "written"
    train(replace(SHORT, cache_targets=True), folder)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"method": MethodSpec("kd", {"temperature": 5})},
        {"method": MethodSpec("dkd")},
        {"method": MethodSpec("ctkd")},
        {"method": MethodSpec("kd", {"logit_weight": 0.6, "feature_weight": 0})},
        {"network": NetworkSpec("resnet18_small", {"width": 6, "layers": [1, 1, 1, 1]}), "teacher": TINY.network},
        {"ema": 0.9},
        {"log_every": "3st", "save_every": "1st"},
    ],
    ids=str,
)
def test_students_that_follow(tmp_path: Path, written: Path, change: Mapping[str, Any]) -> None:
    spec = replace(SHORT, **change)
    train(spec, tmp_path / "alone")
    train(replace(spec, targets_path=written), tmp_path / "reads")
    if "log_every" in change:  # the teacher's losses are those that the writer has logged
        names = ["student/model.safetensors"]
        assert [(tmp_path / run / names[0]).read_bytes() for run in ("alone", "reads")].count(
            (tmp_path / "alone" / names[0]).read_bytes()
        ) == 2
    else:
        assert_same_student(tmp_path / "alone", tmp_path / "reads")


def test_writer_and_reader_resume_in_the_middle_of_a_file(tmp_path: Path, written: Path) -> None:
    train_in_parts(replace(SHORT, cache_targets=True), tmp_path / "writes", 8, 9, 16)
    assert_same_student(written, tmp_path / "writes")
    assert Targets(tmp_path / "writes/targets").steps == [*range(10)]
    one, other = (Targets(folder / "targets") for folder in (written, tmp_path / "writes"))
    for step in range(10):
        assert all(tensor.equal(other.read(step)[name]) for name, tensor in one.read(step).items())
    train_in_parts(replace(SHORT, targets_path=tmp_path / "writes"), tmp_path / "reads", 8, 9, 16)
    assert_same_student(written, tmp_path / "reads")


def test_a_writer_continues_after_a_checkpoint_that_is_older_than_its_files(tmp_path: Path, written: Path) -> None:
    """As after a kill: steps that are in the files already are computed, and left as they are."""
    spec = replace(SHORT, cache_targets=True)
    train_until(spec, tmp_path / "run", 9)
    checkpoint = tmp_path / "run/checkpoint"
    shutil.copytree(checkpoint, tmp_path / "before")
    train_until(spec, tmp_path / "run", 12, resume=True)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run/targets").iterdir()}
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "before", checkpoint)
    train(spec, tmp_path / "run", if_exists="resume")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run/targets").iterdir()}
    assert before.items() <= after.items()
    assert_same_student(written, tmp_path / "run")


def test_a_reader_says_which_steps_it_needs_no_more(tmp_path: Path, written: Path) -> None:
    train_until(replace(SHORT, targets_path=written), tmp_path / "reads", 16)
    needed = read_oldest_needed(RunFolder(tmp_path / "reads"))
    assert 0 < needed["cached targets"] < 8
    train(replace(SHORT, targets_path=written), tmp_path / "reads", if_exists="resume")
    assert_same_student(written, tmp_path / "reads")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 10}, "batch size"),
        ({"schedule": Spaced("1ep")}, "teacher update at each step"),
        ({"data": replace(TINY.data, mixup=0.1)}, "data"),
        ({"precision": "64-true"}, "precision"),
        ({"redraw_replay": True}, "batches of the student"),
        ({"method": MethodSpec("fitnet")}, "features"),
        ({"targets_form": "float16"}, "form"),
        ({"accumulate": 2}, "parts of a batch"),
        ({"teacher_average": "poly:2"}, "teacher average"),
    ],
    ids=str,
)
def test_a_student_that_does_not_fit_is_refused_by_the_name_of_what_differs(
    tmp_path: Path, written: Path, change: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        train(replace(SHORT, **change, targets_path=written), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_that_were_not_cached_are_refused(tmp_path: Path) -> None:
    train(replace(SHORT, method=MethodSpec("dkd"), cache_targets=True), tmp_path / "writes")
    assert Targets(tmp_path / "writes/targets").outputs == ["logits"]
    with pytest.raises(UserError, match="features"):
        train(replace(SHORT, targets_path=tmp_path / "writes"), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": MethodSpec("dml")}, "learns from the student"),
        ({"method": MethodSpec("shake")}, "learns from the student"),
        ({"method": MethodSpec("self-kd")}, "one network"),
        ({"method": MethodSpec("takd")}, "one teacher"),
        ({"method": MethodSpec("none"), "schedule": None}, "one teacher"),
        ({"frozen_mode": "train"}, "frozen_mode"),
        ({"only": "teacher"}, "only"),
        ({"targets_path": "runs/other"}, "leave one out"),
        ({"targets_form": "sample:5@2"}, "temperature"),
        ({"targets_form": "sample:5@3", "method": MethodSpec("kd", {"standardise": True})}, "standardise"),
        ({"targets_form": "top-k:10"}, "whole"),
        ({"engine": EngineSpec(threads=1, pipeline=True)}, "pipeline=True has another way"),
        (
            {"engine": EngineSpec(threads=1, pipeline=True), "cache_targets": False, "targets_form": "float16"},
            "pipeline=True has another way",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_cached(tmp_path: Path, change: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        train(replace(SHORT, **{"cache_targets": True, **change}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class UsesAttribute(KD):
    """A method that looks into its teacher."""

    def losses(self, role: str, models: Any, batch: Any, progress: Any) -> Any:
        if role == "student":
            models["teacher"].network  # noqa: B018
        return super().losses(role, models, batch, progress)


@dataclass(frozen=True)
class CallsTwice(KD):
    """A method that calls its teacher twice."""

    def losses(self, role: str, models: Any, batch: Any, progress: Any) -> Any:
        if role == "student":
            with torch.no_grad():
                models["teacher"](batch.inputs.flip(0), adapted=False)
        return super().losses(role, models, batch, progress)


@dataclass(frozen=True)
class KeepsGradients(KD):
    """A method that records gradients of its teacher's call."""

    def losses(self, role: str, models: Any, batch: Any, progress: Any) -> Any:
        if role == "student":
            models["teacher"](batch.inputs, adapted=False)
        return super().losses(role, models, batch, progress)


@pytest.mark.parametrize(
    ("method", "named"), [(UsesAttribute(), "network"), (CallsTwice(), "twice"), (KeepsGradients(), "gradients")]
)
def test_a_method_of_ones_own_that_uses_more_than_one_call(tmp_path: Path, method: KD, named: str) -> None:
    with pytest.raises(UserError, match=named):
        train(replace(SHORT, schedule=Online(), cache_targets=True), tmp_path / "run", method=method)


class NoisyWhileFrozen(nn.Module):
    """A network that draws random numbers in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(images.mean(1).flatten(1))
        return logits + 0 * torch.randn_like(logits)


def test_a_teacher_that_draws_while_it_is_frozen(tmp_path: Path) -> None:
    spec = replace(SHORT, network=NetworkSpec(), method=MethodSpec("kd", {"feature_weight": 0}), cache_targets=True)
    with pytest.raises(UserError, match="random"):
        train(spec, tmp_path / "run", network=NoisyWhileFrozen)


def test_damage_and_loss_are_refused_and_restored(tmp_path: Path, written: Path) -> None:
    run = tmp_path / "written"
    shutil.copytree(written, run)
    file = sorted((run / "targets").glob("*.safetensors"))[1]
    whole = file.read_bytes()
    reader = replace(SHORT, targets_path=run)
    for damaged in (bytes([*whole[:-1], whole[-1] ^ 1]), whole[:-1], None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(TargetsGone):
            train(reader, tmp_path / "reads", if_exists="resume")
    file.write_bytes(whole)
    train(reader, tmp_path / "reads", if_exists="resume")
    assert_same_student(written, tmp_path / "reads")
    shutil.rmtree(run / "targets")
    train(read_spec(run), run, if_exists="restart")
    train(reader, tmp_path / "again")
    assert_same_student(written, tmp_path / "again")


@pytest.mark.parametrize(
    "change",
    [
        {"classes": 9},
        {"dtype": "float16"},
        {"dtype": "nn"},
        {"form": "top-k:0"},
        {"settings": 3},
        {"steps per file": 0},
    ],
)
def test_a_changed_index_is_refused(tmp_path: Path, written: Path, change: Mapping[str, Any]) -> None:
    shutil.copytree(written / "targets", tmp_path / "targets")
    index = tmp_path / "targets/targets.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    with pytest.raises(TargetsGone):
        Targets(tmp_path / "targets").read(0)


def test_a_file_under_another_name_is_refused(tmp_path: Path, written: Path) -> None:
    shutil.copytree(written / "targets", tmp_path / "targets")
    first = sorted((tmp_path / "targets").glob("*.safetensors"))[0]
    first.rename(first.with_name("000000020-000000023.safetensors"))
    with pytest.raises(TargetsGone, match="other targets"):
        Targets(tmp_path / "targets").read(20)


def test_the_student_of_a_reader_is_evaluated(tmp_path: Path, written: Path) -> None:
    train(replace(SHORT, targets_path=written), tmp_path / "reads")
    run, writer = shutil.copytree(written, tmp_path / "written"), load_run(written)
    train(replace(SHORT, targets_path=run, schedule=SHORT.schedule, ema=0.9), tmp_path / "other")
    for reads in (tmp_path / "reads", tmp_path / "other"):
        teacher = load_run(reads).models["teacher"]
        assert_same_bits(teacher.state_dict(), writer.models["teacher"].state_dict())
    shutil.rmtree(run)
    assert [*load_run(tmp_path / "other").models] == ["student", "average"]
    (tmp_path / "reads/student/model.safetensors").unlink()
    train(replace(SHORT, targets_path=written), tmp_path / "reads", if_exists="resume")
    assert_same_student(written, tmp_path / "reads")


@pytest.mark.parametrize("form", ["float16", "bfloat16", "top-k:3", "sample:20@3"])
def test_other_forms_give_one_student_however_it_comes_to_its_targets(tmp_path: Path, form: str) -> None:
    spec = replace(SHORT, targets_form=form)
    check_write_and_read(tmp_path, spec)
    train(SHORT, tmp_path / "whole")
    students = [(tmp_path / run / "student/model.safetensors").read_bytes() for run in ("alone", "whole")]
    assert students[0] != students[1]
    assert spec.fingerprint() != SHORT.fingerprint()


def test_whole_targets_are_no_part_of_a_fingerprint() -> None:
    for change in ({"cache_targets": True}, {"targets_path": "runs/other"}, {"targets_form": "whole"}):
        assert replace(SHORT, **change).fingerprint() == SHORT.fingerprint()  # type: ignore[arg-type]


def test_a_run_that_cached_can_be_extended_and_one_that_read_cannot(tmp_path: Path, written: Path) -> None:
    longer = replace(SHORT, epochs=4)
    train(longer, tmp_path / "longer", extend=written)
    assert not (tmp_path / "longer/targets").exists()
    train(replace(SHORT, targets_path=written), tmp_path / "reads")
    with pytest.raises(UserError, match="teacher"):
        train(longer, tmp_path / "other", extend=tmp_path / "reads")


def refused(words: list[str]) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "train --data digits --train-limit 40 --width 4 --epochs 2 --batch-size 8 --interval 1ep --threads 1"
    command, first, second = words.split(), str(tmp_path / "first"), str(tmp_path / "second")
    main([*command, "--cache-targets", "--plan", "--out", first])
    assert "targets 13.4 kB" in " ".join(capfd.readouterr().out.split())
    assert refused([*command, "--targets-path", first, "--out", second]) == 2
    assert "--cache-targets" in capfd.readouterr().err
    main([*command, "--cache-targets", "--out", first])
    main([*command, "--targets-path", first, "--set", "method.temperature=5", "--out", second])
    assert refused([*command, "--targets-path", first, "--seed", "1", "--out", str(tmp_path / "third")]) == 2
    assert "another seed" in capfd.readouterr().err


def test_the_plan_has_the_size_of_the_targets(written: Path) -> None:
    files = [load_file(file) for file in (written / "targets").glob("*.safetensors")]
    size = sum(tensor.nbytes for tensors_of_file in files for tensor in tensors_of_file.values())
    planned = forecast(replace(SHORT, cache_targets=True), seconds=0.01)
    assert planned.disk.targets == size == 80 * 4 * (10 + 32)
    assert planned.disk.needed - forecast(SHORT, seconds=0.01).disk.needed > size


# Targets in other training loops.


def outputs(step: int) -> tuple[Tensor, Tensor]:
    """Return logits and features of a step; batches are of two sizes."""
    generator = torch.Generator().manual_seed(step)
    items = 3 if step % 5 == 4 else 4
    return torch.randn(items, 7, 11, generator=generator), torch.randn(items, 6, generator=generator)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    settings = {"teacher": "mine", "sizes": (3, 4)}
    with Targets(tmp_path / "new/targets", settings=settings) as targets:
        for step in range(130):
            assert step not in targets
            logits, hidden = outputs(step)
            targets.write(step, logits, hidden=hidden)
            assert targets.read(step)["logits"].equal(logits)
    again = Targets(tmp_path / "new/targets", settings=settings)
    assert again.steps == [*range(130)]
    assert {*again.outputs} == {"logits", "hidden"}
    assert [path.name for path in sorted((tmp_path / "new/targets").glob("*.safetensors"))] == [
        "000000000-000000127.safetensors",
        "000000128-000000129.safetensors",
    ]
    for step in (0, 4, 127, 128, 129):
        logits, hidden = outputs(step)
        assert again.read(step)["logits"].equal(logits)
        assert again.read(step)["hidden"].equal(hidden)
    with pytest.raises(TargetsGone, match="130"):
        again.read(130)


def test_a_writer_that_was_killed_writes_the_rest(tmp_path: Path) -> None:
    def write(steps: range, flush: bool) -> None:
        targets = Targets(tmp_path)
        for step in steps:
            targets.write(step, outputs(step)[0])
        if flush:
            targets.flush()

    write(range(20), flush=True)
    write(range(20, 25), flush=False)  # lost
    write(range(15, 30), flush=True)  # from a checkpoint after step 15
    write(range(40, 42), flush=True)
    targets = Targets(tmp_path)
    assert targets.steps == [*range(30), 40, 41]
    assert all(targets.read(step)["logits"].equal(outputs(step)[0]) for step in targets.steps)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"settings": {"teacher": "other", "seed": 0}}, "teacher"),
        ({"settings": {"teacher": "mine"}}, "seed"),
        ({"form": "float16"}, "whole"),
        ({"rank": 0, "ranks": 2}, "process"),
        ({"settings": {"teacher": {1, 2}}}, "JSON"),
    ],
    ids=str,
)
def test_other_targets_are_refused_by_name(tmp_path: Path, changed: Mapping[str, Any], named: str) -> None:
    with Targets(tmp_path, settings={"teacher": "mine", "seed": 0}) as targets:
        targets.write(0, outputs(0)[0])
    with pytest.raises(UserError, match=named):
        Targets(tmp_path, **changed)


def test_processes_write_their_own_parts(tmp_path: Path) -> None:
    for rank in range(2):
        with Targets(tmp_path, rank=rank, ranks=2) as targets:
            targets.write(0, outputs(rank)[0])
    for rank in range(2):
        assert Targets(tmp_path, rank=rank, ranks=2).read(0)["logits"].equal(outputs(rank)[0])


def test_layouts_are_kept(tmp_path: Path) -> None:
    maps = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    with Targets(tmp_path) as targets:
        targets.write(0, outputs(0)[0], maps=maps)
    read = Targets(tmp_path).read(0)["maps"]
    assert read.equal(maps)
    assert read.stride() == maps.stride()


# The forms, against formulas.


def restored(form: str, z: Tensor, seed: int = 0) -> Tensor:
    made = parse_form(form)
    return made.decode(made.encode(z, seed), z.shape[-1], z.dtype)


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
def test_top_k_keeps_probabilities_and_spreads_the_tail(shape: tuple[int, ...]) -> None:
    z = 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    p, q = z.double().softmax(-1), restored("top-k:4", z).double().softmax(-1)
    order = p.argsort(-1, descending=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    torch.testing.assert_close(q[..., :4], p[..., :4], rtol=1e-5, atol=0)
    even = p[..., 4:].sum(-1, keepdim=True) / 8
    torch.testing.assert_close(q[..., 4:], even.expand_as(q[..., 4:]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_drawn_classes_give_the_gradient_on_average(temperature: float) -> None:
    """The mean over R draws of K classes has a standard error of sqrt(p (1 - p) / (R K)) for each probability."""
    generator = torch.Generator().manual_seed(0)
    teacher, student = (2 * torch.randn(1, 12, generator=generator) for _ in range(2))
    rounds, draws = 400, 5

    def gradient(targets: Tensor) -> Tensor:
        z = student.clone().requires_grad_()
        kl(z, targets, temperature).backward()
        assert z.grad is not None
        return z.grad

    one_by_one = [gradient(restored(f"sample:{draws}@{temperature:g}", teacher, seed)) for seed in range(rounds)]
    mean, exact = torch.stack(one_by_one).mean(0), gradient(teacher)
    p = (teacher / temperature).softmax(1)
    error = (p * (1 - p) / (rounds * draws)).sqrt() / temperature
    assert torch.all((mean - exact).abs() < 5 * error)
    assert not torch.allclose(one_by_one[0], one_by_one[1])
    biased = gradient(restored("top-k:3", teacher))
    assert torch.any((biased - exact).abs() > 5 * error)


def test_half_precision_rounds() -> None:
    z = torch.randn(4, 9, dtype=torch.float64)
    assert torch.equal(restored("float16", z), z.half().double())
    assert torch.equal(restored("bfloat16", z), z.bfloat16().double())
    with pytest.raises(UserError, match="bfloat16"):
        restored("float16", torch.full((1, 2), 1e6))


@pytest.mark.parametrize("text", ["half", "top-k", "top-k:0", "top-k:3@2", "sample:5@0", "sample:@3", "whole:3", ""])
def test_forms_that_do_not_exist(text: str) -> None:
    with pytest.raises(UserError, match="top-k"):
        replace(SHORT, targets_form=text)
    with pytest.raises(UserError, match="top-k"):
        parse_form(text)
