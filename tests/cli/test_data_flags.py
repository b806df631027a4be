"""The flags that say what a run sees, and the spec they stand for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from spacedkd import AugmentSpec, DataSpec, RunSpec, UserError
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import apply_flags
from tests.data.on_disk import class_folders


def data_of(words: str, base: DataSpec | None = None) -> DataSpec:
    return apply_flags(RunSpec(data=base or DataSpec()), parse(shlex.split(words))).data


def test_every_flag_has_its_place() -> None:
    words = (
        "--data owner/name --root /r --image-size 64 --augment vit --mixup 0.2 --cutmix 1 --train-limit 9 "
        "--holdout 0.1 --test-part 0.3 --train-split a --test-split b --image-column c --label-column d --class-list e "
        "--skip-bad --drop-last True --label-noise 0.2"
    )
    assert data_of(words) == DataSpec(
        source="owner/name",
        root="/r",
        image_size=64,
        augmentation="vit",
        mixup=0.2,
        cutmix=1.0,
        train_limit=9,
        holdout=0.1,
        test_part=0.3,
        train_split="a",
        test_split="b",
        image_column="c",
        label_column="d",
        class_list="e",
        skip_bad=True,
        drop_last=True,
        label_noise=0.2,
    )


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--data cifar100 --rotate 0", AugmentSpec(4, True, 0)),
        ("--data digits --crop 2", AugmentSpec(2, False, 10)),
        ("--data digits --augment cifar --flip False", AugmentSpec(4, False, 15)),
        ("--data imagenet-1k --crop 3", AugmentSpec(3)),
        ("--data cifar100 --augment vit", None),
        ("--data digits --augment plain --crop 2", AugmentSpec(2)),
        ("--data digits --augment small --rotate 5", AugmentSpec(1, True, 5)),
    ],
)
def test_changes_start_from_what_the_data_or_the_augmentation_has(words: str, changes: AugmentSpec | None) -> None:
    assert data_of(words).augment == changes


def test_another_augmentation_forgets_the_changes_of_the_first() -> None:
    filled = DataSpec("cifar100", AugmentSpec(4, True, 15), augmentation="cifar")
    assert data_of("--augment vit", filled).augment is None
    assert data_of("--augment plain", filled).augment is None
    assert data_of("--augment plain --crop 2", filled).augment == AugmentSpec(2)
    assert data_of("--lr 0.1", filled) == filled


def test_changes_of_a_fixed_augmentation_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--data", "digits", "--augment", "vit", "--crop", "3"])
    assert "Augmentation vit is fixed" in capsys.readouterr().err
    with pytest.raises(UserError, match="mixup must be from 0"):
        data_of("--mixup -1")


def test_a_flag_that_cannot_matter_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--data", "digits", "--label-column", "x"])
    said = capsys.readouterr().err
    assert "label_column does not matter for digits" in said
    assert "FILE.parquet" in said
    assert said.count("\n") == 1


def test_lists_name_everything(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "data"])
    main(["list", "augmentations"])
    shown = capsys.readouterr().out
    for name in ("tiny-imagenet", "imagenet-100", "FILE.parquet", "OWNER/NAME", "self-cifar", "vit"):
        assert name in shown


def test_a_bad_image_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = class_folders(tmp_path / "photos")
    (place / "train" / "cat" / "001.png").write_text("oops")
    with pytest.raises(SystemExit):
        main(["train", "--data", "photos", "--width", "4"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "photos/train/cat/001.png is not an image. Repair or remove them, or leave them out with --skip-bad" in said
