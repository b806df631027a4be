"""A finished run, read from its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import Run, UserError, read_run
from spacedkd.runs.result import summarize_accuracies
from spacedkd.schedule import Ahead, Offline, Online, ReleasedSelfKD, Schedule, Spaced
from tests.reporting.fake_runs import FakeArm, write_runs

ARM = FakeArm("online", [0.7, 0.8], lead=0.1)


def read(root: Path, arm: FakeArm) -> Run:
    return read_run(write_runs(root, [arm])[0])


def entry(role: str, epoch: float, test: float, holdout: float | None = None) -> dict[str, Any]:
    parts = {"test": {"final": test}} | ({} if holdout is None else {"holdout": {"final": holdout}})
    return {"event": "accuracy", "role": role, "epoch": epoch, "accuracy": parts}


def test_last_and_best_epoch() -> None:
    journal = [
        entry("student", 1, 0.5),
        {"event": "loss"},
        entry("student", 2, 0.9),
        entry("student", 3, 0.9),
        entry("student", 4, 0.7),
    ]
    assert summarize_accuracies(journal) == (
        {"student": {"test": {"final": {"last": 0.7, "best": 0.9, "best_epoch": 2}}}},
        "test",
    )


def test_the_best_epoch_is_chosen_without_the_test_images_where_some_were_held_out() -> None:
    scores, judge = summarize_accuracies([entry("student", 1, 0.5, 0.9), entry("student", 2, 0.8, 0.6)])
    assert judge == "holdout"
    assert scores["student"]["test"]["final"] == {"last": 0.8, "best": 0.5, "best_epoch": 1}
    assert scores["student"]["holdout"]["final"] == {"last": 0.6, "best": 0.9, "best_epoch": 1}


def test_a_folder_says_all_of_it(tmp_path: Path) -> None:
    folder, other = write_runs(tmp_path, [ARM])
    run = read_run(str(folder))
    assert (run.folder, run.spec, run.label, run.seed) == (folder, ARM.spec, "online", 0)
    assert (run.roles, run.leader, run.shares_one_model) == (["teacher", "student"], "teacher", False)
    assert (run.score(), run.score("best")) == (0.7, pytest.approx(0.71))
    assert (run.steps_per_epoch, run.total_steps, run.seconds, run.cost["updates"]) == (10, 40, 40.0, 80)
    assert run.accuracy_curves["student"] == pytest.approx({1: 0.175, 2: 0.35, 3: 0.525, 4: 0.7})
    assert run.accuracy_curves["teacher"][4] == pytest.approx(0.8)
    assert run == read_run(folder) != read_run(other), "what was read of it on the way does not count"


def test_one_role_has_no_leader_and_two_may_be_one_network(tmp_path: Path) -> None:
    assert read(tmp_path / "a", replace(ARM, roles=("pupil",))).leader is None
    assert read(tmp_path / "b", replace(ARM, method="self-kd")).shares_one_model


def test_a_run_that_is_not_finished_is_said_how_to_finish(tmp_path: Path) -> None:
    folder, _ = write_runs(tmp_path, [ARM])
    (folder / "result.json").unlink()
    with pytest.raises(UserError, match=f"not finished.* spacedkd train --resume {folder}"):
        read_run(folder)
    with pytest.raises(UserError, match="There is no run in .*: it has no spec.json. Name the folder of one run."):
        read_run(folder.parent)


@pytest.mark.parametrize(
    "damage",
    [
        lambda written: "{",
        lambda written: "[]",
        lambda written: json.dumps({key: value for key, value in written.items() if key != "cost"}),
        lambda written: json.dumps(written | {"plan": {"roles": ["teacher", "pupil"]}}),
        lambda written: json.dumps(written | {"plan": {"roles": []}}),
        lambda written: json.dumps(
            written | {"plan": written["plan"] | {"learners": written["plan"]["learners"] | {"nobody": {}}}}
        ),
        *(
            lambda written, name=name, value=value: json.dumps(written | {name: json.loads(value)})  # type: ignore[misc]
            for name in ("accuracy", "cost", "plan", "seconds")
            for value in ("null", "{}", "[]", '"text"', '{"student": null}', '{"roles": null}', "NaN")
        ),
    ],
)
def test_a_damaged_result_is_one_clear_line(tmp_path: Path, damage: Any) -> None:
    folder, _ = write_runs(tmp_path, [ARM])
    path = folder / "result.json"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UserError, match="result.json .* Delete it, then: spacedkd train --resume"):
        read_run(folder)


@pytest.mark.parametrize(
    ("schedule", "interval"),
    [(Online(), 1), (Spaced("1.5ep"), 15), (Offline(), 40), (Ahead("1ep"), None), (ReleasedSelfKD("2ep"), None)],
)
def test_the_interval_is_in_steps(tmp_path: Path, schedule: Schedule, interval: int | None) -> None:
    assert read(tmp_path, replace(ARM, schedule=schedule)).interval == interval


def test_one_role_has_an_interval_only_where_it_teaches_itself(tmp_path: Path) -> None:
    alone = replace(ARM, roles=("student",), schedule=Spaced("1.5ep"))
    assert read(tmp_path / "a", alone).interval is None
    plain = read(tmp_path / "b", replace(alone, method="self-kd", variant="plain"))
    assert plain.interval == 0
    assert replace(plain, spec=replace(plain.spec, schedule=None)).interval == 0


def test_what_must_be_equal_for_runs_to_be_paired(tmp_path: Path) -> None:
    run = read(tmp_path / "a", ARM)
    spec = run.spec
    rest = run.all_but_spacing

    def others(**changes: Any) -> str:
        return replace(run, spec=replace(spec, **changes)).all_but_spacing

    variant = replace(spec.method, options={**spec.method.options, "variant": "live"})
    named = {"label": "x", "seed": 5, "schedule": Spaced("1ep"), "teacher": spec.network, "method": variant}
    assert others(**named, engine=replace(spec.engine, workers=2)) == rest
    assert others(engine=replace(spec.engine, devices=2)) != rest, "BatchNorm sees another part of the batch"
    assert others(epochs=5) != rest
    assert others(teacher=replace(spec.network, name="resnet34_small")) != rest
    assert others(method=replace(spec.method, options={"temperature": 9})) != rest
    longer = replace(run, plan={**run.plan, "roles": ["teacher", "assistant", "student"]})
    assert longer.all_but_spacing != rest
    assert replace(run, plan={**run.plan, "roles": ["student"]}).all_but_spacing == rest


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "no accuracy of the student"),
        ("null\n", "line 1 is 'null'"),
        ("[1]\n", "line 1 is"),
        ("{}\n", "line 1 is"),
        ('{"event": "accuracy"}\n', "role is missing"),
        ('{"event": "accuracy", "role": "student", "epoch": "x"}\n', "epoch is 'x'"),
        ('{"event": "accuracy", "role": "student", "epoch": 1, "accuracy": {"test": {}}}\n', "test.final is missing"),
        ('{"event": "loss", "role": "student", "epoch": 1}\n', "losses is missing"),
        ('{"event": "loss", "role": "student", "epoch": 1, "losses": {"label": NaN}}\n', "losses.label is nan"),
        ("{" * 100_000 + "\n", "line 1 is not valid JSON"),
    ],
)
def test_a_damaged_journal_is_one_clear_line(tmp_path: Path, written: str, why: str) -> None:
    folder, _ = write_runs(tmp_path, [ARM])
    (folder / "journal.jsonl").write_text(written)
    with pytest.raises(UserError, match=f"journal.jsonl.*{why}"):
        read_run(folder).accuracy_curves  # noqa: B018


def test_a_loss_that_was_logged_very_often_keeps_its_mean_and_its_ends(tmp_path: Path) -> None:
    folder, _ = write_runs(tmp_path, [ARM])
    many = [2.0 + (step % 7) / 10 for step in range(4096)]
    lines = [
        {"event": "loss", "role": "student", "epoch": n / 100, "losses": {"own": one}} for n, one in enumerate(many)
    ]
    with (folder / "journal.jsonl").open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in lines)
    points = read_run(folder).journal.losses["student", "own"].points
    epochs, values = zip(*points, strict=True)
    assert 64 <= len(points) <= 128
    assert sum(values) / len(values) == pytest.approx(sum(many) / len(many))
    assert epochs == tuple(sorted(epochs))
    assert epochs[0] < 1
    assert epochs[-1] > 40


def test_a_run_is_an_object_to_work_with(tmp_path: Path) -> None:
    run = read_run(write_runs(tmp_path, [ARM])[0])
    assert run.accuracy == 0.7
    assert repr(run) == f"Run('{run.folder}': online, seed 0, 70.0 % of 10000 test images)"
    results = run.results.set_index(["role", "part", "head"])
    assert results.loc[("teacher", "test", "final"), "last"] == pytest.approx(0.8)
    assert [*results.columns] == ["last", "best", "best_epoch"]
    curves = run.curves
    assert [*curves.columns] == ["role", "epoch", "part", "head", "accuracy"]
    student = curves[curves.role == "student"]
    assert dict(zip(student.epoch, student.accuracy, strict=True)) == run.accuracy_curves["student"]


def test_a_table_without_pandas_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(write_runs(tmp_path, [ARM])[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        _ = run.results


def test_reading_a_run_imports_neither_torch_nor_pandas(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, [ARM])[0]
    code = (
        f"import sys, spacedkd; run = spacedkd.read_run({str(folder)!r}); run._repr_html_(); print(run.accuracy); "
        "assert not {'torch', 'pandas'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0.7\n", "")
