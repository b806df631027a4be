"""What must hold bit for bit between runs that differ only in their schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spacedkd import Ahead, DataSpec, Duration, NetworkSpec, Offline, Online, RunSpec, Spaced, train
from spacedkd.schedule import Blocks, Growing, Schedule, Window
from tests.conftest import assert_same_bits, of_model, tensors

Make = Callable[..., RunSpec]


def trained(spec: RunSpec, folder: Path) -> Path:
    train(spec, folder)
    return folder


def test_online_is_spaced_by_one_step(tmp_path: Path, tiny_with: Make) -> None:
    online = tensors(trained(tiny_with(schedule=Online()), tmp_path / "online"))
    for name, same in {"spaced": Spaced("1st"), "ahead": Ahead("0st")}.items():
        assert_same_bits(online, tensors(trained(tiny_with(schedule=same), tmp_path / name)))


def test_offline_is_spaced_by_the_whole_run(tmp_path: Path, tiny_with: Make) -> None:
    offline = tensors(trained(tiny_with(schedule=Offline()), tmp_path / "offline"))
    schedules = {
        "epochs": Spaced("3ep"),
        "steps": Spaced("15st"),
        "ahead": Ahead("15st"),
        "infinite speed": Spaced("1ep", speed="inf"),
        "great speed": Spaced("2st", speed=8),
        "one block": Blocks(["15st"]),
    }
    for name, same in schedules.items():
        assert_same_bits(offline, tensors(trained(tiny_with(schedule=same), tmp_path / name)))


def test_equal_blocks_are_spaced(tmp_path: Path, tiny_with: Make) -> None:
    spaced = tensors(trained(tiny_with(schedule=Spaced("4st")), tmp_path / "spaced"))
    schedules = {"one length": Blocks([4]), "lengths": Blocks([4, 4, 4, 4]), "factor 1": Growing("4st", 1)}
    for name, same in schedules.items():
        assert_same_bits(spaced, tensors(trained(tiny_with(schedule=same), tmp_path / name)))


def test_a_chain_with_infinite_speed_is_offline(tmp_path: Path, tiny_with: Make) -> None:
    runs = [
        tensors(trained(tiny_with("ban", {"generations": 3}, schedule=schedule, epochs=1), tmp_path / str(number)))
        for number, schedule in enumerate((Offline(), Spaced("2st", speed="inf")))
    ]
    assert_same_bits(*runs)


def test_the_teacher_does_not_depend_on_the_interval_nor_on_the_student(tmp_path: Path, tiny_with: Make) -> None:
    schedules: list[Schedule] = [
        Online(),
        Spaced("1.5ep"),
        Spaced("4st", tail="drop"),
        Offline(),
        Ahead("1ep"),
        Window(Spaced("1ep"), Online(), "1ep", stop="2ep"),
    ]
    teachers = [of_model(trained(tiny_with(schedule=s), tmp_path / str(i)), "teacher") for i, s in enumerate(schedules)]
    for other in teachers[1:]:
        assert_same_bits(teachers[0], other)
    students = [of_model(tmp_path / str(i), "student") for i in range(len(schedules))]
    different = {students[i]["model/student/network.fc.weight"].numpy().tobytes() for i in range(len(schedules))}
    assert len(different) == len(schedules), "every schedule should give a student of its own"


def test_without_distillation_the_student_is_the_teacher(tmp_path: Path, tiny_with: Make) -> None:
    """Same data, same seed, same weights to begin with: only the distillation terms tell them apart."""
    options = {"label_weight": 1.0, "logit_weight": 0.0, "feature_weight": 0.0}
    folder = trained(tiny_with(options=options, schedule=Spaced("1.5ep")), tmp_path / "kd")
    alone = trained(tiny_with("none"), tmp_path / "none")
    student, teacher = of_model(folder, "student"), of_model(folder, "teacher")
    assert_same_bits({k.replace("/student/", "/teacher/"): v for k, v in student.items()}, teacher)
    assert_same_bits(student, of_model(alone, "student"))


@pytest.mark.parametrize("changes", [{"data": DataSpec("digits", train_limit=40, holdout=0.2)}, {"same_init": False}])
def test_the_same_spec_gives_the_same_bits(tmp_path: Path, tiny_with: Make, changes: dict[str, object]) -> None:
    spec = tiny_with(schedule=Spaced("1.5ep"), **changes)
    one, other = (trained(spec, tmp_path / name) for name in ("one", "other"))
    assert_same_bits(tensors(one), tensors(other))
    assert (one / "journal.jsonl").read_bytes() == (other / "journal.jsonl").read_bytes()


def test_seeds_differ_and_teachers_can_start_elsewhere(tmp_path: Path, tiny_with: Make) -> None:
    first = tensors(trained(tiny_with(epochs=1), tmp_path / "0"))
    second = tensors(trained(tiny_with(epochs=1, seed=1), tmp_path / "1"))
    apart = tensors(trained(tiny_with(epochs=1, same_init=False), tmp_path / "apart"))
    stem = "model/{}/network.conv1.weight".format
    assert not torch.equal(first[stem("teacher")], second[stem("teacher")])
    assert not torch.equal(first[stem("teacher")], apart[stem("teacher")])


def test_workers_change_no_bit(tmp_path: Path, tiny_with: Make) -> None:
    from dataclasses import replace

    spec = tiny_with(schedule=Spaced("1.5ep"))
    with_workers = replace(spec, engine=replace(spec.engine, workers=2))
    one, other = trained(spec, tmp_path / "0"), trained(with_workers, tmp_path / "2")
    assert_same_bits(tensors(one), tensors(other))


def test_dropout_is_a_function_of_role_and_step(tmp_path: Path, tiny_with: Make) -> None:
    """A teacher with dropout and drop-path does not depend on the interval either."""
    network = NetworkSpec("resnet18_small", {"width": 4, "drop_rate": 0.3, "drop_path_rate": 0.2})
    folders = [
        trained(tiny_with(network=network, schedule=schedule), tmp_path / str(i))
        for i, schedule in enumerate([Online(), Spaced("1.5ep")])
    ]
    assert_same_bits(of_model(folders[0], "teacher"), of_model(folders[1], "teacher"))
    plain = trained(tiny_with(schedule=Online()), tmp_path / "plain")
    weight = "model/teacher/network.conv1.weight"
    assert not torch.equal(tensors(plain)[weight], tensors(folders[0])[weight])


def test_how_often_things_are_measured_changes_no_bit(tmp_path: Path, tiny_with: Make) -> None:
    often = tiny_with(evaluate_every=Duration(1, "st"), log_every=Duration(1, "st"), save_every=Duration(1, "st"))
    one, other = trained(often, tmp_path / "often"), trained(tiny_with(), tmp_path / "seldom")
    assert_same_bits(tensors(one), tensors(other))
