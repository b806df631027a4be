"""The commands on a card train the exported student again, also where its run went on from others."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from spacedkd import RunSpec, export, read_run, read_spec, train
from spacedkd.cli import main

SHORT = "--data digits --train-limit 40 --width 4 --batch-size 8 --threads 1 --interval 1ep".split()  # 5 steps an epoch
FIRST = "spacedkd train --spec spec.json --out"


def of_card(folder: Path, language: str = "") -> str:
    card = (folder / "README.md").read_text().partition("## Train it again")[2]
    (block,) = re.findall(rf"```{language}\n(.*?)\n```", card, re.DOTALL)
    return str(block)


def student(run: Path) -> bytes:
    return (run / "student/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("flags", "epochs", "how", "commands"),
    [
        ("", "2", [], [f"{FIRST} runs/again"]),
        ("", "1 2 3", ["exact", "exact"], [f"{FIRST} runs/again --set 'extends=[]'"]),
        (
            "--rate cosine",
            "2 3",
            ["warm"],
            [
                f"{FIRST} runs/again-2ep --set 'extends=[]' --epochs 2",
                "spacedkd train --extend runs/again-2ep --epochs 3 --out runs/again",
            ],
        ),
        (
            "",  # blocks of five steps: the last of 2.4 epochs has two, the last of the 1.6 added three
            "1 2.4 4 5",
            ["exact", "anew", "anew"],
            [
                f"{FIRST} runs/again-2.4ep --set 'extends=[]' --epochs 2.4",
                "spacedkd train --extend runs/again-2.4ep --epochs 4 --out runs/again-4ep",
                "spacedkd train --extend runs/again-4ep --epochs 5 --out runs/again",
            ],
        ),
    ],
)
def test_commands(
    flags: str, epochs: str, how: list[str], commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *longer = epochs.split()
    main(["train", *SHORT, *flags.split(), "--epochs", first, "--out", f"run-{first}"])
    last = first
    for more in longer:
        main(["train", "--extend", f"run-{last}", "--epochs", more, "--out", f"run-{more}"])
        last = more
    assert [one.how for one in read_run(f"run-{last}").spec.extends] == how
    main(["export", f"run-{last}", "--to", "exported"])
    assert of_card(tmp_path / "exported").splitlines() == commands
    monkeypatch.chdir(tmp_path / "exported")
    for command in commands:
        main(shlex.split(command)[1:])
    assert student(Path("runs/again")) == student(tmp_path / f"run-{last}")


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def test_in_python(tiny: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = replace(tiny, network=RunSpec().network, method="none", schedule=None, rate="cosine", epochs=1)
    train(spec, "first", network=Flat)
    train(replace(read_spec("first"), epochs=2), "run", extend="first", network=Flat)
    export("run", "exported")
    monkeypatch.chdir(tmp_path / "exported")
    exec(of_card(Path(), "python").replace("network=...", "network=Flat"), {"Flat": Flat})
    assert student(Path("runs/again")) == student(tmp_path / "run")
