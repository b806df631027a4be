"""Run folders without training: the files a run leaves behind, with accuracies of the test's choosing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spacedkd.comparison.results import compare_runs
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import DataSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.reporting.page import write_page
from spacedkd.schedule import Online, Schedule


@dataclass(frozen=True)
class FakeArm:
    """An arm whose runs ended with these accuracies, one for each seed from 0 up."""

    label: str
    accuracies: Sequence[float]
    method: str = "kd"
    variant: str | None = None
    schedule: Schedule | None = None
    roles: Sequence[str] = ("teacher", "student")
    epochs: int = 4
    steps_per_epoch: int = 10
    best_chosen_on: str = "test"
    network: str = "resnet18_small"
    temperature: float = 3.0
    lead: float = 0.0
    """by so much every role is better than the next one"""
    average: float | None = None
    """accuracy of the student's moving average, if one is kept"""

    def reached(self, accuracy: float) -> dict[str, float]:
        """The last accuracy of everybody who is measured."""
        ahead = range(len(self.roles) - 1, -1, -1)
        found = {role: accuracy + self.lead * place for role, place in zip(self.roles, ahead, strict=True)}
        return found if self.average is None else {**found, "average": self.average}

    @property
    def spec(self) -> RunSpec:
        options = {"temperature": self.temperature} | ({} if self.variant is None else {"variant": self.variant})
        return RunSpec(
            data=DataSpec("digits", train_limit=2000),
            network=NetworkSpec(self.network, {"width": 8}),
            method=MethodSpec(self.method, options),
            schedule=self.schedule or Online(),
            epochs=self.epochs,
            ema=None if self.average is None else 0.9,
            label=self.label,
        )

    def result(self, spec: RunSpec, accuracy: float) -> dict[str, Any]:
        heads = ("final", "ensemble") if self.method == "self-kd" else ("final",)

        def scores(last: float) -> dict[str, float]:
            return {"last": last, "best": last + 0.01, "best_epoch": self.epochs}

        updates = len(self.roles) * self.epochs * self.steps_per_epoch
        passes = {"forward_passes": updates, "backward_passes": updates}
        images = {"forward_images": 128 * updates, "backward_images": 128 * updates}
        return {
            "label": spec.label,
            "seed": spec.seed,
            "fingerprint": spec.fingerprint(),
            "accuracy": {
                role: {"test": dict.fromkeys(heads, scores(last))} for role, last in self.reached(accuracy).items()
            },
            "best_chosen_on": self.best_chosen_on,
            "cost": {"updates": updates, **passes, **images, "by_model": {"student updates": updates}},
            "seconds": 0.5 * updates,
            "plan": {
                "roles": [*self.roles],
                "learners": {role: "network" if self.method == "self-kd" else role for role in self.roles},
                "steps_per_epoch": self.steps_per_epoch,
                "total_steps": self.epochs * self.steps_per_epoch,
                "test_images": 10_000,
            },
            "environment": {"torch": "2.13.0", "device": "cpu", "processes": 1, "threads": 2},
        }

    def losses(self, role: str, reached: float) -> dict[str, float]:
        """Of a role that has reached this accuracy; only those who follow somebody have a loss of logits."""
        return {"label": 2 * (1 - reached)} | ({} if role == self.roles[0] else {"logit": 1 - reached})

    def journal(self, accuracy: float) -> str:
        entries = []
        for role, last in self.reached(accuracy).items():
            for epoch in range(1, self.epochs + 1):
                reached = last * epoch / self.epochs
                when = {"role": role, "epoch": float(epoch)}
                if role in self.roles:
                    entries.append({"event": "loss", **when, "losses": self.losses(role, reached)})
                entries.append({"event": "accuracy", **when, "accuracy": {"test": {"final": reached}}})
        return "".join(json.dumps(entry) + "\n" for entry in entries)


def write_runs(root: Path, arms: Sequence[FakeArm]) -> list[Path]:
    """The folders of all runs, in the order of the arms."""
    folders = []
    for place, arm in enumerate(arms):
        for seed, accuracy in enumerate(arm.accuracies):
            folder = root / f"arm{place}" / f"seed{seed}"
            folder.mkdir(parents=True)
            spec = replace(arm.spec, seed=seed)
            (folder / "spec.json").write_text(json.dumps(to_json(spec)))
            (folder / "result.json").write_text(json.dumps(arm.result(spec, accuracy)))
            (folder / "journal.jsonl").write_text(arm.journal(accuracy))
            folders.append(folder)
    return folders


def page_of(root: Path, *arms: FakeArm, unfinished: int = 0) -> str:
    """The page that compares the arms with the first of them."""
    folders = write_runs(root / "runs", arms)
    write_page(root / "page.html", compare_runs(folders), unfinished)
    return (root / "page.html").read_text(encoding="utf-8")
