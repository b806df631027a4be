"""The paper's tables as they are declared: its own numbers, and the runs that stand beside them."""

import math
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest

from spacedkd import Ahead, MethodSpec, Offline, Online, RunSpec, Spaced, recipe
from spacedkd.config.resolve import resolve_method
from spacedkd.methods import DLB
from spacedkd.paper.catalogue import gflop, list_tables
from spacedkd.paper.reproduce import select_cells
from spacedkd.paper.results import table_results
from spacedkd.paper.scales import SCALES, Scale, scale_of
from spacedkd.paper.table import Cell
from spacedkd.paper.tables import tables
from spacedkd.paper.tables.self_ import self_kd
from spacedkd.schedule import Window

NAMES = (
    "online self interval loss methods critical-period ahead teachers imagenet hyperparameters noise corruptions "
    "adversarial theory gains cost"
).split()
# The columns of differences as the paper prints them, from top to bottom.
PRINTED = {
    ("online", "spaced 1.5"): [1.38, 1.92, 1.19, 1.63, 1.41, 1.56, 2.31, 2.47, 2.38, 2.00, 1.66, 2.65, 2.62, 1.74],
    ("self", "spaced 4"): [
        *(2.44, 2.44, 3.00, 3.00, 3.08, 3.08, 3.02, 3.02, 1.75, 1.75),  # each beside the deepest head and all heads
        *(2.22, 2.22, 3.44, 3.44, 3.86, 3.86, 3.06, 3.06, 2.96, 2.96),
    ],
    ("loss", "w/ 1.5"): [-0.24, 0.49, 0.11, 1.38, 1.66],
    ("adversarial", "w/ 1.5"): [0.11, 0.38, 1.99],
}
# impulse noise, zoom blur, snow, frost, jpeg, brightness: severities 1, 3, 5 of online KD, then 1 of self KD
CORRUPTIONS = {
    "ResNet-18 w/": [
        *(1.23, 1.14, -0.50, 0.98, 0.56, 0.51, 1.77, 0.94, 0.88, 2.09, 0.70, 1.67, -0.89, -0.91, 0.57),
        *(2.05, 1.91, 0.45, 9.92, 4.16, 4.84, 3.84, 3.68, 2.74),
    ],
    "ResNet-50 w/": [
        *(1.78, 1.12, 0.08, 1.67, 1.41, 1.31, 0.36, 0.26, -0.38, -0.23, -0.18, 0.71, 0.43, 0.94, 0.57),
        *(0.84, 0.15, 0.12, 9.39, 4.10, 4.93, 5.45, 0.90, 4.28),
    ],
    "ResNet-101 w/": [
        *(1.51, 0.60, -0.69, 0.33, 0.48, 0.86, 0.56, 1.37, 0.66, 1.06, 0.18, -0.65, 1.01, 0.83, 0.74),
        *(0.63, 1.11, 1.24, 9.45, 5.07, 4.73, 3.48, 1.12, 3.81),
    ],
}


def cells(name: str, scale: str | Scale = "paper") -> list[Cell]:
    return [*tables()[name].table.cells(scale_of(scale) if isinstance(scale, str) else scale)]


def differences(name: str, column: str) -> list[float]:
    found = {cell.key: cell for cell in cells(name)}
    gains = []
    for cell in found.values():
        if cell.column == column and cell.against is not None and cell.paper is not None:
            base = found[cell.against].paper
            assert base is not None
            gains.append(round(cell.paper - base, 2))
    return gains


def test_all_are_there_in_the_order_of_the_paper() -> None:
    assert [*tables()] == NAMES
    assert all(named.claim.endswith(".") for named in tables().values())


@pytest.mark.parametrize(("name", "column"), PRINTED)
def test_the_numbers_give_the_differences_the_paper_prints(name: str, column: str) -> None:
    assert differences(name, column) == PRINTED[name, column]


@pytest.mark.parametrize("column", CORRUPTIONS)
def test_the_numbers_under_corruptions_give_the_differences_the_paper_prints(column: str) -> None:
    self_kd = CORRUPTIONS[column][-6:]  # of which the paper does not say the head: they stand beside both
    assert differences("corruptions", column) == [*CORRUPTIONS[column], *self_kd]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_one_run_and_is_measured_against_a_cell_that_is_there(name: str, scale: str) -> None:
    found = cells(name, scale)
    assert all(count == 1 for count in Counter(cell.key for cell in found).values())
    keys = {cell.key for cell in found}
    for cell in found:
        assert cell.against is None or cell.against in keys
        resolve_method(cell.spec)
        assert gflop(cell.spec) > 0


def test_the_arms_at_the_papers_scale_are_the_recipe_with_one_thing_changed() -> None:
    base = replace(recipe("paper-cnn"), precision="32-true")  # the released code has no mixed precision
    by_column = {cell.column: cell.spec for cell in cells("interval") if cell.row == "ResNet-18, CIFAR-100"}
    assert by_column["w/ 1.5"] == base
    assert by_column["online"] == replace(base, schedule=Online())
    assert by_column["w/ max"] == replace(base, schedule=Offline())
    assert by_column["baseline"] == replace(base, method=MethodSpec("none"), schedule=None)
    leads = [cell.spec.schedule for cell in cells("ahead")]
    assert leads == [Online(), *(Ahead(f"{lead}ep") for lead in ("0.5", "1", "1.5", "2", "2.5")), Spaced("1.5ep")]
    windows = {cell.key: cell.spec.schedule for cell in cells("critical-period")}
    inside = (Spaced("1.5ep"), Online())
    assert windows["for 10 epochs", "60"] == Window(*inside, "60ep", length="10ep")
    assert windows["for 10 epochs", "70"] == windows["to the end", "70"] == Window(*inside, "70ep", stop="80ep")
    assert windows["to the end", "30"] == Window(*inside, "30ep", stop="80ep")
    assert windows["to the end", "0"] == Spaced("1.5ep")


def test_a_shorter_scale_keeps_the_parts_of_the_run_and_the_intervals_in_epochs() -> None:
    windows = {cell.key: cell.spec.schedule for cell in cells("critical-period", "cpu")}
    assert windows["for 10 epochs", "40"] == Window(Spaced("1.5ep"), Online(), "30ep", length="7.5ep")
    (late,) = [cell for cell in cells("imagenet", "cpu") if cell.key == ("ResNet-18, online KD", "ResNet-18 80")]
    assert late.metric == "at/60"


def test_self_kd_is_judged_by_its_deepest_head_and_by_all_heads_of_the_same_runs() -> None:
    found = {cell.key: cell for cell in cells("self", "cpu") if cell.row.startswith("ResNet-18, CIFAR-100")}
    deepest, all_heads = "ResNet-18, CIFAR-100", "ResNet-18, CIFAR-100, all heads"
    judged = [key for key, cell in found.items() if cell.judged and cell.against]
    assert judged == [(deepest, "spaced 4"), (all_heads, "spaced 4")]
    assert (all_heads, "w/o KD") not in found
    for column in ("self KD", "spaced 4", "spaced 4, snapshot", "self KD, 2x epochs"):
        one, several = found[deepest, column], found[all_heads, column]
        assert (one.metric, several.metric) == ("late", "ensemble_best")
        assert (one.spec, one.paper) == (several.spec, several.paper)


def test_noise_of_both_kinds_is_judged_by_what_the_text_says() -> None:
    """Accuracy against online KD; the rise of the loss against online KD and the independent model; no plain loss."""
    found = [cell for cell in cells("noise", "cpu") if cell.row.startswith("ResNet-18, ")]
    judged = [cell for cell in found if cell.judged and cell.against]
    assert Counter(cell.row for cell in judged) == {
        f"ResNet-18, {kind} noise, {what}, w/ 1.5": 5
        for kind in ("absolute", "relative")
        for what in ("accuracy", "rise of the loss")
    }
    rise = next(cell for cell in judged if cell.metric == "weight_noise/absolute/0.01/rise")
    row = "ResNet-18, absolute noise, rise of the loss"
    assert rise.against == (f"{row}, w/o", "0.01")
    assert rise.contrasts == ((f"{row}, independent", "0.01"),)
    arms = {cell.row.rpartition(", ")[2]: cell.spec for cell in found}
    assert arms["independent"].method == MethodSpec("none")
    assert (arms["w/o"].schedule, arms["w/ 1.5"].schedule) == (Online(), Spaced("1.5ep"))


def test_the_gains_of_the_text_are_compared_with_the_printed_differences() -> None:
    """Those of both tables in PRINTED: their average is 2.32 where the text has 2.14, the greatest 3.86 not 3.44."""
    online, own = PRINTED["online", "spaced 1.5"], PRINTED["self", "spaced 4"][::2]
    named = tables()["gains"]
    found = table_results(named, cells("gains"), lambda cell, metric: {})["summaries"]
    assert [one["stated"] for one in found] == [2.14, 1.19, 3.44, 2.31, 3.34]
    expected = [sum([*online, *own]) / 24, min(online), max(own), max(online[5:10]), max(own[4:8])]
    assert [one["printed"] for one in found] == pytest.approx(expected)
    assert [round(one["printed"], 2) for one in found] == [2.32, 1.19, 3.86, 2.47, 3.86]
    assert {cell.spec.fingerprint() for cell in cells("gains")} <= {
        cell.spec.fingerprint() for name in ("online", "self") for cell in cells(name)
    }


def test_batches_up_to_64_are_said_to_have_no_gain() -> None:
    spaced = [cell for cell in cells("hyperparameters", "cpu") if cell.against]
    assert {cell.column for cell in spaced if cell.claims == "no gain"} == {"batch 32", "batch 64"}
    assert {cell.column for cell in spaced if not cell.judged} == {"batch 128"}
    rows = {cell.row for cell in spaced if cell.row.endswith("learning rate")}
    intervals = ["online KD w/ 0.5", "online KD w/ 1.0", "online KD w/ 1.5", "online KD w/ 2.0"]
    assert rows == {f"{name}, learning rate" for name in (*intervals, "self KD w/ 1.5", "self KD w/ 4.0")}


def test_the_control_of_self_kd_costs_as_much_as_spaced_self_kd() -> None:
    found = {cell.key: cell for cell in cells("cost")}
    equal = found["self KD, accuracy at equal cost", "w/o ours"].spec
    assert equal.epochs == 2 * found["self KD, updates", "w/o ours"].spec.epochs
    assert found["self KD, accuracy at equal cost", "w/ ours"].claims == "gain"


def test_equal_runs_of_different_tables_are_equal_specs() -> None:
    def prints(name: str) -> set[str]:
        return {cell.spec.fingerprint() for cell in cells(name, "cpu")}

    assert prints("noise") | prints("adversarial") <= prints("interval")
    assert len(prints("ahead") & prints("interval")) == 2
    assert len(prints("loss") & prints("interval")) == 2
    assert len(prints("critical-period") & prints("interval")) == 2
    assert len(prints("online") & prints("interval")) == 30


@pytest.mark.parametrize("recipe", ["paper", "official"])
def test_no_kd_of_the_self_kd_table_is_that_of_the_online_table(recipe: str) -> None:
    """Also where the released self-KD code starts its networks otherwise: it has no run without KD."""
    scale = scale_of("paper", recipe)
    online = {cell.row: cell.spec for cell in cells("online", scale) if cell.column == "w/o KD"}
    alone = {cell.row: cell.spec for cell in cells("self", scale) if cell.column == "w/o KD"}
    assert len(alone) == 10
    assert all(spec == online[row] for row, spec in alone.items())


def test_official_arms_have_the_quirks_of_the_released_code() -> None:
    official = scale_of("paper", "official")

    def spec_of(column: str) -> RunSpec:
        return next(cell.spec for cell in cells("interval", official) if cell.column == column)

    assert spec_of("w/ 1.5") == recipe("official-cnn")
    assert spec_of("online").follower_first
    assert spec_of("baseline").method == MethodSpec("none")


def test_methods_of_the_appendix_are_trained_as_it_says() -> None:
    """Born-again and assistant chains one network after the other; DLB and PS-KD alone, then as teachers."""
    found = {cell.key: cell.spec for cell in cells("methods")}

    def arms(label: str) -> list[tuple[str, object]]:
        row = f"ResNet-18, CIFAR-100, {label}"
        return [
            (found[row, column].method.name, found[row, column].schedule) for column in ("w/o KD", "w/ KD", "w/ ours")
        ]

    spaced = Spaced("1.5ep")
    assert arms("BAN") == [("none", None), ("ban", Offline()), ("ban", spaced)]
    assert arms("TAKD") == [("none", None), ("takd", Offline()), ("takd", spaced)]
    assert arms("PS-KD") == [("ps-kd", None), ("ps-kd", Online()), ("ps-kd", spaced)]
    assert arms("DML") == [("none", None), ("dml", Online()), ("dml", spaced)]
    taught = [resolve_method(found["ResNet-18, CIFAR-100, DLB", column])[0] for column in ("w/o KD", "w/ KD")]
    assert [cast(DLB, method).variant for method in taught] == ["plain", "taught"]


def test_a_larger_teacher_costs_more() -> None:
    """Of a step the student's network learns, 3 passes; the teacher's learns and teaches, 4."""
    found = {cell.key: gflop(cell.spec) for cell in cells("teachers")}
    images = 50_000 * 80
    assert found["ResNet-101", "online"] == pytest.approx((3 * 1.11 + 4 * 5.02) * images)
    assert found["ResNet-101", "baseline"] == pytest.approx(3 * 5.02 * images)


def test_no_interval_of_the_smallest_scale_is_another_one() -> None:
    smoke = SCALES["smoke"]
    for data in smoke.data.values():
        steps = math.ceil((data.train_limit or 0) / smoke.batch_size)
        intervals = [1, *(round(epochs * steps) for epochs in (0.5, 1, 1.5, 2)), round(smoke.epochs * steps)]
        assert intervals == sorted({*intervals})


def test_the_docstring_of_a_table_states_its_cost_and_its_command() -> None:
    costs = {entry.name: entry.cost for entry in list_tables(Path("nowhere"))}
    for name in NAMES:
        module = import_module(f"spacedkd.paper.tables.{'self_' if name == 'self' else name.replace('-', '_')}")
        said = " ".join((module.__doc__ or "").split())
        assert f"spacedkd reproduce {name} --scale cpu" in said
        cost = costs[name]
        assert f"Cost of all seeds: {cost['smoke']} at smoke, {cost['cpu']} at cpu, {cost['paper']} at paper." in said


@pytest.mark.parametrize("recipe", ["paper", "official"])
@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_a_run_is_known_by_its_network_and_data(scale: str, recipe: str) -> None:
    """Whatever they are called at a scale: at smoke all data are digits, and wider networks have the same name.

    Quirks of the released code add options to its networks.
    """
    size = scale_of(scale, recipe)
    for network in size.networks:
        for data in size.data:
            assert size.names(size.run(network, data)) == (network, data)
            assert size.names(size.self_run(network, data, self_kd)) == (network, data)


@pytest.mark.parametrize("scale", ["smoke", "cpu"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "theory"])
def test_a_pattern_of_network_and_data_reaches_every_table(name: str, scale: str) -> None:
    pattern = "resnet18, imagenet-1k" if name == "imagenet" else "resnet18, cifar*"
    found = select_cells(tables()[name], scale_of(scale), pattern)
    assert found
    own = [cell for cell in found if scale_of(scale).names(cell.spec) == tuple(pattern.replace("*", "100").split(", "))]
    assert {cell.key for cell in found} == {cell.key for cell in own} | {cell.against for cell in own if cell.against}
