"""Evaluations without networks: the file a run's evaluation leaves behind, with numbers of the test's choosing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spacedkd.evaluation.adversarial import attack


def evaluation(accuracy: float, noise: float = 0.0, stopped: str = "error reached", **changes: Any) -> dict[str, Any]:
    """One run's evaluation in which everything follows from one accuracy."""
    measured = {"model": "student", "head": "final"}
    bins = [
        {
            "low": place / 15,
            "high": (place + 1) / 15,
            "images": 0 if place < 7 else 25,
            "confidence": None if place < 7 else (place + 0.5) / 15,
            "accuracy": None if place < 7 else accuracy * place / 15,
        }
        for place in range(15)
    ]
    head = {
        "top1": accuracy,
        "top5": min(1.0, accuracy + 0.1),
        "nll": 1 - accuracy,
        "ece": (1 - accuracy) / 4,
        "per_class": [accuracy] * 10,
        "reliability": bins,
        "agrees_with_final": 1.0,
    }
    student = {
        "images": 200,
        "class_images": [20] * 10,
        "bins": 15,
        "heads": {"final": head},
        "agreement": {"teacher": accuracy},
    }
    mean = {"mean": accuracy - 0.2, "low": None, "high": None, "n": 1}
    instruments: dict[str, Any] = {
        "accuracy": {"class_names": [str(k) for k in range(10)], "models": {"student": {"test": student}}},
        "corruptions": {
            "images": 200,
            "names": ["fog", "snow"],
            "severities": [1, 5],
            "enlarged": 4,
            "clean": {"final": accuracy},
            "mean": {"final": accuracy - 0.1},
            "found": [
                {"name": name, "severity": severity, "accuracy": {"final": accuracy - severity / 50}}
                for name in ("fog", "snow")
                for severity in (1, 5)
            ],
        },
        "adversarial": {
            "images": 200,
            "seed": 0,
            "clean": accuracy,
            "attacks": [
                {"attack": vars(attack(name, epsilon)), "accuracy": accuracy - epsilon / 40}
                for name in ("fgsm", "bim")
                for epsilon in (1.0, 8.0)
            ],
        },
        "weight_noise": {
            "images": 100,
            "draws": 3,
            "seed": 0,
            "loss": 0.1,
            "accuracy": 1.0,
            "batchnorm": "running statistics (eval mode)",
            "levels": [
                {"kind": "absolute", "level": 0.01, "loss": mean, "accuracy": mean},
                {"kind": "relative", "level": 0.1, "loss": None, "accuracy": mean},
            ],
        },
        "curvature": {
            "images": 100,
            "error": 0.05,
            "batchnorm": "running statistics (eval mode)",
            "trace": {
                "method": "hutch++",
                "value": 2000 * (1 - accuracy) + noise,
                "standard_error": 20,
                "stopped": stopped,
            },
            "largest": {"value": 100 * (1 - accuracy)},
        },
    }
    for name, value in changes.items():
        instruments[name] = {**instruments[name], **value}
    found = {name: {"measured": measured, **one} for name, one in instruments.items()}
    return {"origin": {"epochs": 4, "weights_digest": "fake"}, "instruments": found}


def evaluate(folder: Path, accuracy: float, **changes: Any) -> None:
    (folder / "evaluation.json").write_text(json.dumps(evaluation(accuracy, **changes)))
