"""Tables made again at the smallest scale: every run is kept once, and the tables say what the runs' folders say."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from spacedkd import DataSpec, Duration, UserError, read_run
from spacedkd.evaluation import document
from spacedkd.evaluation.evaluate import evaluate
from spacedkd.paper import results
from spacedkd.paper.report import result_tables
from spacedkd.paper.reproduce import Reproduction, find_tables, select_cells
from spacedkd.paper.scales import SMOKE, scale_of
from spacedkd.paper.store import Store
from spacedkd.paper.table import Instruments
from spacedkd.paper.tables import tables
from tests.reporting.fake_evaluations import evaluation

SMALLEST = replace(SMOKE, epochs=8, batch_size=20, evaluate_every=Duration(2, "ep"))


def reproduction(store: Path, *names: str, seeds: Sequence[int] = (0, 1), only: str | None = None) -> Reproduction:
    return Reproduction(find_tables(names), SMALLEST, Store(store), seeds, only)


def train(found: Reproduction) -> None:
    diverged = found.store.train(found.jobs(1), 1, lambda job, moment: None)
    assert not diverged


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """The leads, of which online KD is one arm, and the attack on two of them."""
    found = reproduction(tmp_path_factory.mktemp("store"), "ahead", "adversarial", only="resnet18*")
    train(found)
    return found


def test_an_arm_of_two_tables_is_trained_once(made: Reproduction) -> None:
    folders = sorted(path.parent.name for path in made.store.folder.glob("runs/*/*/result.json"))
    assert len(made.arms) == 7  # six leads, of which 0 is online KD, and spaced
    assert folders == ["seed0"] * 7 + ["seed1"] * 7


def test_a_second_time_nothing_is_trained(made: Reproduction) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.store.folder.rglob("result.json")}
    again = reproduction(made.store.folder, "ahead", only="resnet18*")
    train(again)
    assert {path: path.stat().st_mtime_ns for path in made.store.folder.rglob("result.json")} == before
    assert again.results("ahead")["missing"] == 0


def test_the_results_are_those_of_the_runs(made: Reproduction) -> None:
    found = made.results("ahead")
    assert (found["seeds"], found["missing"]) == ([0, 1], 0)
    for cell in found["cells"]:
        runs = {seed: read_run(made.store.folder / "runs" / cell["fingerprint"] / f"seed{seed}") for seed in (0, 1)}
        for seed, run in runs.items():
            curve = run.accuracy_curves["student"]
            assert cell["values"][str(seed)] == sum(curve[epoch] for epoch in curve if epoch > 6) / 1
        assert cell["also"]["last"]["mean"] == pytest.approx(sum(run.score() for run in runs.values()) / 2)
    (spaced,) = [cell for cell in found["cells"] if cell["column"] == "1.5"]
    online = next(cell for cell in found["cells"] if cell["column"] == "0")
    gains = [spaced["values"][seed] - online["values"][seed] for seed in ("0", "1")]
    assert spaced["difference"]["mean"] == pytest.approx(sum(gains) / 2)
    assert spaced["paper_difference"] == -0.36
    assert (spaced["verdict"], spaced["judged"]) == (None, True), "nothing is judged at this scale"
    assert found["verdict"]["sentence"] == f"Not judged: {SMALLEST.unjudged}."
    json.dumps(found)


def test_instruments_are_used_where_a_table_needs_them(made: Reproduction) -> None:
    todo = made.to_measure()
    assert len(todo) == 4  # two arms, two seeds
    folder, plan = todo[0]
    evaluate(folder, plan)
    assert [one for one, _ in made.to_measure()] == [one for one, _ in todo[1:]]
    found = made.results("adversarial")
    first = next(cell for cell in found["cells"] if cell["values"])
    assert [*first["values"].values()] == [results.evaluated_metrics(folder)[first["metric"]].value]


def test_a_loss_that_is_not_finite_is_measured(tmp_path: Path) -> None:
    document.write(tmp_path, {"epochs": 16}, evaluation(0.8)["instruments"])
    assert "weight_noise/relative/0.1/loss" not in results.evaluated_metrics(tmp_path)
    assert results.is_measured(tmp_path, Instruments(noise=(0.1,)))
    assert not results.is_measured(tmp_path, Instruments(absolute_noise=(0.1,)))
    assert results.is_measured(tmp_path, Instruments(corruptions=("fog",), severities=(1, 5)))
    assert not results.is_measured(tmp_path, Instruments(noise=(0.1, 0.2)))
    assert not results.is_measured(tmp_path, Instruments(corruptions=("fog",), severities=(1, 3)))
    assert not results.is_measured(tmp_path, Instruments(epsilons=(7.0,)))
    assert not results.is_measured(tmp_path / "none", Instruments(noise=(0.1,)))


def test_what_a_run_costs_is_what_was_counted(made: Reproduction) -> None:
    online = next(cell for cell in made.cells["ahead"] if cell.column == "0")
    run = made.runs(online)[0]
    updates = results.read_metric(run, "cost/updates", results.evaluated_metrics)
    assert updates.value == run.cost["updates"] == 2 * 8 * 2  # two networks, eight epochs of 40 images in batches of 20
    assert (updates.better, updates.unit) == ("low", "number")


def test_the_rise_of_a_loss_is_from_no_noise_to_a_level(made: Reproduction, tmp_path: Path) -> None:
    run = made.runs(made.cells["ahead"][0])[0]
    document.write(tmp_path, {"epochs": 16}, evaluation(0.8)["instruments"])
    measured = results.evaluated_metrics(tmp_path)
    rise = results.read_metric(run, "weight_noise/absolute/0.01/rise", lambda folder: measured)
    assert rise.value == measured["weight_noise/absolute/0.01/loss"].value - measured["weight_noise/clean/loss"].value
    assert (rise.better, rise.unit) == ("low", "number")
    with pytest.raises(LookupError):  # a loss that was not finite
        results.read_metric(run, "weight_noise/relative/0.1/rise", lambda folder: measured)


def test_numbers_alone_give_the_same_table_and_are_not_trained_again(made: Reproduction, tmp_path: Path) -> None:
    made.copy_numbers(tmp_path / "numbers")
    copied = reproduction(tmp_path / "numbers", "ahead", "adversarial", only="resnet18*")
    assert all(job.finished for job in copied.jobs(1))
    train(copied)
    assert copied.results("ahead") == made.results("ahead")
    assert copied.to_measure() == []
    assert len(copied.runs_without_networks()) == len(made.to_measure()) in (3, 4)  # one may have been measured before
    assert made.runs_without_networks() == []
    copied.copy_numbers(tmp_path / "again")  # and so do numbers of numbers
    assert reproduction(tmp_path / "again", "ahead", only="resnet18*").results("ahead") == made.results("ahead")
    kept = [path for path in (tmp_path / "numbers").rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.name for path in kept} <= {
        "store.json",
        "spec.json",
        "result.json",
        "journal.jsonl",
        "evaluation.json",
    }
    assert not any(str(made.store.folder) in path.read_text() for path in kept)


def test_rows_are_chosen_with_those_they_are_measured_against() -> None:
    rise = "ResNet-18, absolute noise, rise of the loss"
    assert {cell.row for cell in select_cells(tables()["noise"], SMALLEST, f"{rise}, w/1*")} == {
        f"{rise}, independent",
        f"{rise}, w/o",
        f"{rise}, w/ 1.5",
    }
    severe = select_cells(tables()["corruptions"], SMALLEST, "online KD, snow [2-4]")
    assert {cell.row for cell in severe} == {"online KD, snow 3"}
    with pytest.raises(UserError, match="No row is like 'vgg\\*'"):
        _ = reproduction(Path("unused"), "noise", only="vgg*").cells


def test_a_row_with_runs_comes_with_the_row_it_is_measured_against(made: Reproduction, tmp_path: Path) -> None:
    spaced = made.store.arm(next(cell for cell in made.cells["ahead"] if cell.column == "spaced 1.5").spec)
    alone = tmp_path / "runs" / spaced.fingerprint
    shutil.copytree(made.store.folder / "runs" / spaced.fingerprint, alone)
    found = reproduction(tmp_path, "hyperparameters", only="self KD, learning*").results("hyperparameters")
    reached = {(cell["row"], cell["column"]): cell["runs"] for cell in found["cells"]}
    assert reached["online KD w/ 1.5, learning rate", "lr 0.01"] == 2
    assert reached["online KD, learning rate", "lr 0.01"] == 0


def test_unknown_tables_list_the_known() -> None:
    with pytest.raises(UserError, match="interval"):
        find_tables(["intervall"])


def test_a_store_of_other_versions_is_refused_with_the_difference(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin()
    written = json.loads((tmp_path / "store.json").read_text())
    written["versions"]["torch"] = "1.0"
    (tmp_path / "store.json").write_text(json.dumps(written))
    with pytest.raises(UserError, match=r"torch 1\.0.*--store"):
        Store(tmp_path).check()


def test_data_that_is_not_there_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    from spacedkd.paper.scales import scale_of

    found = Reproduction(find_tables(["teachers"]), scale_of("cpu", root=str(tmp_path / "none")), Store(tmp_path), [0])
    with pytest.raises(UserError, match="cifar100"):
        found.store.train(found.jobs(1), 1, lambda job, moment: None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_store_has_one_precision_wherever_it_is_taken(tmp_path: Path, precision: str) -> None:
    Store(tmp_path).begin()
    written = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(written | {"precision": precision}))
    spec = SMALLEST.run("resnet18")
    assert spec.precision == "auto"
    assert Store(tmp_path).arm(spec).spec.precision == precision
    assert Store(tmp_path).arm(replace(spec, precision="64-true")).spec.precision == "64-true"
    (tmp_path / "store.json").write_text(json.dumps(written | {"precision": "half"}))
    with pytest.raises(UserError, match=r"store\.json cannot be read"):
        Store(tmp_path).check()


def test_what_was_not_asked_for_is_not_missing(made: Reproduction) -> None:
    """Two arms of one network, of which there are runs; the columns of the other networks are left out."""
    found = reproduction(made.store.folder, "corruptions", only="resnet18*").results("corruptions")
    assert found["columns"] == ["ResNet-18 w/o", "ResNet-18 w/"]
    assert found["missing"] == 4, "two arms of self KD, two seeds"


def test_all_data_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    found = Reproduction(
        find_tables(["online"]), scale_of("cpu", root=str(tmp_path)), Store(tmp_path), [0], "*imagenet*"
    )
    with pytest.raises(UserError, match="tiny-imagenet is not in .* imagenet-100 is not in ") as error:
        found.check_data()
    assert len(str(error.value).splitlines()) == 1


ROWS = {
    "self": "resnet18, cifar*",
    "methods": "resnet18, cifar100, shake",
    "teachers": "resnet18x2",
    "imagenet": "deit*",
    "hyperparameters": "self kd w/ 4*, batch size",
    "noise": "resnet18*",
    "gains": "self kd, resnet18, cifar*",
    "cost": "self kd*",
    "corruptions": "resnet18*",
}
"""of the tables that no other test trains, rows of few runs"""


def test_rows_of_the_other_tables_are_trained_measured_and_shown(tmp_path: Path) -> None:
    """On 24 images, 20 of them to learn from, so that all corruptions of them take a second."""
    digits = load_digits()
    images = (digits.images[:24] * 15.9).astype(np.uint8)[..., None].repeat(3, axis=-1)
    np.savez(
        tmp_path / "few.npz",
        x_train=images[:20],
        y_train=digits.target[:20],
        x_test=images[20:],
        y_test=digits.target[20:24],
    )
    few = DataSpec(str(tmp_path / "few.npz"), augmentation="none")
    scale = replace(SMALLEST, data=dict.fromkeys(SMALLEST.data, few), batch_size=10, root=few.root)
    store = Store(tmp_path / "store")
    for name, only in ROWS.items():
        found = Reproduction(find_tables([name]), scale, store, [0], only)
        train(found)
        for folder, plan in found.to_measure():
            evaluate(folder, plan)
        results = found.results(name)
        assert results["missing"] == 0
        assert results["cells"]
        assert all(cell["estimate"]["n"] == 1 for cell in results["cells"]), name
        assert len(result_tables(results)) > 0
        assert found.draw(name, tmp_path) == (["corruptions.png"] if name == "corruptions" else [])
    with Image.open(tmp_path / "corruptions.png") as picture:
        assert picture.width > 0


def test_averages_of_weights_have_rows_of_their_own(tmp_path: Path) -> None:
    scale = replace(SMALLEST, average="poly:2")
    averaged = Reproduction(find_tables(["online"]), scale, Store(tmp_path), (0, 1), "resnet18, cifar100")
    train(averaged)
    results = averaged.results("online")
    plain, rows = (len([cell for cell in results["cells"] if ("average" in cell["row"]) == of]) for of in (False, True))
    assert plain == rows == 3
    by_key = {(cell["row"], cell["column"]): cell for cell in results["cells"]}
    for (row, column), cell in by_key.items():
        if "average" not in row:
            continue
        base = by_key[row.removesuffix(", average"), column]
        assert cell["fingerprint"] == base["fingerprint"], "the same runs"
        assert cell["paper"] is None
        assert not cell["judged"]
        for seed, value in cell["values"].items():
            folder = tmp_path / "runs" / cell["fingerprint"] / f"seed{seed}"
            entries = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
            of_average = [e for e in entries if e["event"] == "accuracy" and e["role"] == "average"]
            assert value == pytest.approx(
                of_average[-1]["accuracy"]["test"]["final"]
            )  # a quarter of eight epochs has one evaluation
    assert by_key["ResNet-18, CIFAR-100, average", "online"]["difference"] is not None
    assert scale.folder == "smoke-average-poly-2"
