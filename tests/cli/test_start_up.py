"""Help, lists and mistakes come at once: nothing heavy is imported for them, and names are imported when asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import spacedkd

HEAVY = ("torch", "timm", "torchvision", "numpy", "scipy", "sklearn", "lightning_fabric")
AT_ONCE = [
    ("", 2),  # a verb is needed
    ("--help", 0),
    ("--version", 0),
    *(
        (f"{verb} --help", 0)
        for verb in ("train", "compare", "evaluate", "report", "theory", "list", "status", "export", "completion")
    ),
    ("train -H", 0),
    ("compare --help-all", 0),
    ("completion fish", 0),
    ("completion tcsh", 2),
    ("list", 0),
    ("list schedules", 0),
    ("list recipes", 0),
    ("list methds", 2),
    ("trian", 2),
    ("train --intervl 3", 2),
    ("train --epochs many", 2),
    ("train --plan --epochs many", 2),
    ("train --flip perhaps", 2),
    ("train --method kdd", 2),
    ("train --interval soon", 2),
    ("train --interval 0ep", 2),
    ("train --ahead 1ep --interval 1ep", 2),
    ("train --window 1ep..2ep", 2),
    ("train --tail drop", 2),
    ("train --rate cosin", 2),
    ("train --milestones 1ep", 2),
    ("train --rate multistep", 2),
    ("train --nesterov True --momentum 0", 2),
    ("train --lr -1 --width 4", 2),
    ("train --crop -1", 2),
    ("train --set nonsense=3", 2),
    ("train --set teacher.width=3", 2),
    ("train --resume x --lr 3", 2),
    ("train --spec missing.json", 2),
    ("train --recipe paper", 2),
    ("train --method kd --assistant resnet18_small", 2),
    ("train --accelerator tpu", 2),
    ("compare", 2),
    ("compare --plan", 2),
    ("compare --arm colon", 2),
    ("compare --methods kd", 2),
    ("compare --methods kdd --interval 1ep", 2),
    ("compare --arm a:--lr=1 --jobs 0", 2),
    ("compare --arm a:--lr=1 --against b", 2),
    ("evaluate", 2),
    ("evaluate run --corruptions --only frog", 2),
    ("evaluate run --adversarial --attacks bmi", 2),
    ("evaluate run --noise 0.1", 2),
    ("evaluate run --flatness --noise -1", 2),
    ("evaluate run --data digits", 2),
    ("export", 2),
    ("export run", 2),
    ("export run --to new", 2),
    ("export run --to new --license Mine!", 2),
    ("export run --to new --private", 2),
    ("train --spec missing.yaml", 2),
    ("report", 2),
    ("report run --out page.json", 2),
    ("train --log tensorbord", 2),
    ("train --log csv csv", 2),
    ("status", 2),
    ("status nowhere", 2),
    ("status .", 2),
    ("list runs", 2),
    ("list runs .", 2),
    ("list methods runs", 2),
]
CHECK = f"""
import contextlib, io, json, sys
from spacedkd.cli import main
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(words.split())
            code = 0
        except SystemExit as stop:
            code = stop.code
    found.append([words, code, said.getvalue(), [name for name in {HEAVY} if name in sys.modules]])
print(json.dumps(found), file=sys.__stdout__)
"""


def test_help_lists_and_mistakes_import_nothing_heavy(tmp_path: Path) -> None:
    words = json.dumps([words for words, _ in AT_ONCE])
    ran = subprocess.run([sys.executable, "-c", CHECK, words], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert [(words, code, heavy) for words, code, _, heavy in found] == [(*one, []) for one in AT_ONCE]
    assert not [said for _, _, said, _ in found if "Traceback" in said]
    assert list(tmp_path.iterdir()) == []


def test_the_package_and_its_specs_import_nothing_heavy() -> None:
    code = (
        "import sys, spacedkd\n"
        "spec = spacedkd.RunSpec(network='resnet18', method='self-kd', schedule=spacedkd.Spaced('3st'))\n"
        "spacedkd.recipe('official-vit'), spec.fingerprint(), spacedkd.learning_rate.constant(1.0)\n"
        "spacedkd.evaluation.EvaluationSpec()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_there() -> None:
    names = [*vars(spacedkd)["__all__"]]
    packages = [getattr(spacedkd, name) for name in names if isinstance(getattr(spacedkd, name), ModuleType)]
    assert 25 <= len(names) - len(packages) <= 40  # those that a user needs first
    assert {*names} <= {*dir(spacedkd)}
    for package in packages:
        assert all(getattr(package, name) is not None for name in vars(package).get("__all__", ()))
    assert {"KD", "DKD", "Method", "losses"} <= {*dir(spacedkd.methods)}
    with pytest.raises(AttributeError, match="No spacedkd attribute Result"):
        getattr(spacedkd, "Result")  # noqa: B009
