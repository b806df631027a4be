"""Compare the bits of 69 small runs before and after a change of the code.

    python -m scripts.bits before.json                        # on the old code
    python -m scripts.bits after.json --against before.json   # on the new code; exit code 1 where a run differs

The runs cover every method unspaced and spaced, all precisions, every schedule, averages, workers, dropout, a ViT,
own optimizers, mixup, held-out images, recorded and replayed teachers, and pipelines. For each run the file has a
digest of the student's weights, of all models and optimizers in the checkpoint, and of the journal, and the
fingerprint of its spec. Bits depend on the machine, so compare files of one machine. It takes two minutes on two cores.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from spacedkd import (
    Ahead,
    DataSpec,
    Duration,
    EngineSpec,
    MethodSpec,
    NetworkSpec,
    Offline,
    Online,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Spaced,
    train,
)
from spacedkd.methods import METHODS
from spacedkd.schedule import Blocks, Growing, Schedule, Window

BASE = RunSpec(
    data=DataSpec("digits", train_limit=40),
    network=NetworkSpec("resnet18_small", {"width": 4, "layers": [1, 1, 1, 1]}),
    epochs=3,
    batch_size=8,
    optimizer=OptimizerSpec(lr=0.02),
    precision="32-true",
    log_every=Duration(2, "st"),
    save_every=Duration(4, "st"),
    engine=EngineSpec(threads=1),
)
TWO_PROCESSES = (
    "--data digits --train-limit 40 --network resnet18_small --width 4 --epochs 3 --batch-size 8 --lr 0.02 "
    "--interval 1.5ep --precision 32-true --threads 1 --accelerator cpu --devices 2"
)
VIT = NetworkSpec(
    "vit_tiny_patch16_224",
    {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 4, "num_heads": 2, "drop_path_rate": 0.1},
)
SPACED = replace(BASE, schedule=Spaced("1.5ep"))


def specs() -> dict[str, RunSpec]:
    """Return the runs by name."""
    runs: dict[str, RunSpec] = {}
    for name, method in METHODS.items():
        runs[name] = replace(BASE, method=MethodSpec(name))
        if name != "none":
            runs[f"{name} spaced"] = replace(SPACED, method=MethodSpec(name, dict(method.card.when_spaced)))
    for precision in ("bf16-mixed", "bf16-true", "64-true"):
        runs[precision] = replace(SPACED, precision=precision)
    schedules: dict[str, Schedule] = {
        "offline": Offline(),
        "ahead": Ahead("3st"),
        "dropped tail": Spaced("4st", tail="drop"),
        "speed": Spaced("1ep", speed=2),
        "infinite speed": Spaced("1ep", speed="inf"),
        "blocks": Blocks([2, 1, 5]),
        "growing": Growing("1st", 2),
        "window": Window(Spaced("3st"), Online(), "1ep", length="1ep"),
        "window of ahead": Window(Ahead("2st"), Spaced("3st"), "1ep", stop="2ep"),
    }
    runs |= {name: replace(BASE, schedule=schedule) for name, schedule in schedules.items()}
    dropout = NetworkSpec(BASE.network.name, {**BASE.network.options, "drop_rate": 0.3})
    runs |= {
        "average": replace(SPACED, ema=0.9),
        # A spec of older code has no such field.
        **({"polynomial average": replace(SPACED, average="poly:2")} if hasattr(SPACED, "average") else {}),
        "workers": replace(SPACED, engine=EngineSpec(threads=1, workers=2)),
        "dropout": replace(SPACED, network=dropout),
        "ViT": replace(SPACED, network=VIT),
        "ViT self KD": replace(
            SPACED, network=VIT, method=MethodSpec("self-kd", dict(METHODS["self-kd"].card.when_spaced))
        ),
        "teacher of its own": replace(SPACED, teacher=VIT),
        "AdamW, cosine": replace(SPACED, optimizer=OptimizerSpec("adamw", lr=0.003), rate=RateSpec("cosine")),
        "lion": replace(SPACED, optimizer=OptimizerSpec("lion", lr=0.001)),
        "mixup and cutmix": replace(SPACED, data=replace(BASE.data, mixup=0.8, cutmix=1.0)),
        "held-out images": replace(SPACED, data=replace(BASE.data, holdout=0.25)),
        "accumulated": replace(SPACED, accumulate=2, label_smoothing=0.1),
        "frozen in train mode": replace(SPACED, frozen_mode="train"),
        "frozen shared": replace(SPACED, frozen_mode="shared"),
        "follower first": replace(BASE, follower_first=True),
        "other batches": replace(SPACED, redraw_replay=True, follower_rate="leader"),
        "other first weights": replace(SPACED, same_init=False, seed=3),
        "pipeline": replace(SPACED, engine=EngineSpec(threads=1, pipeline=True)),
    }
    return runs


def digest(path: Path) -> str:
    """Return the digest of a file; of a file of tensors, that of their names and values in order."""
    if path.suffix != ".safetensors":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    total = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        total.update(name.encode() + str((tensor.dtype, *tensor.shape)).encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def describe(folder: Path) -> dict[str, str]:
    """Return the digests of a finished run."""
    files = {
        "student": folder / "student" / "model.safetensors",
        "average": folder / "student" / "average" / "model.safetensors",
        "best": folder / "best" / "model.safetensors",
        "checkpoint": folder / "checkpoint" / "latest.safetensors",
        "journal": folder / "journal.jsonl",
    }
    result = json.loads((folder / "result.json").read_text())
    return {
        "fingerprint": result["fingerprint"],
        **{name: digest(path) for name, path in files.items() if path.exists()},
    }


def train_all(folder: Path) -> dict[str, dict[str, str]]:
    """Train every run in a folder of its own, then a recorded teacher and a student that replays it."""
    digests = {}
    for number, (name, spec) in enumerate(specs().items()):
        run = folder / str(number)
        train(spec, run)
        digests[name] = describe(run)
        print(f"{name}: {digests[name]}", file=sys.stderr)
    # Two processes start this program twice, so the command line has to be that program.
    command = [sys.executable, "-m", "spacedkd", "train", "--out", str(folder / "two"), *TWO_PROCESSES.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    digests["two processes"] = describe(folder / "two")
    recorded, replayed = folder / "recorded", folder / "replayed"
    train(replace(BASE, schedule=Online(), record=(Spaced("1.5ep"),)), recorded)
    train(replace(SPACED, teacher_path=str(recorded)), replayed)
    student = describe(replayed)["student"]
    assert student == digests["kd spaced"]["student"], "a replayed teacher gives another student than one that learns"
    digests["recorded"], digests["replayed"] = describe(recorded), {"student": student}
    return digests


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for every run that is missing or different."""
    lines = [f"{name}: missing" for name in before if name not in after]
    for name, digests in after.items():
        other = before.get(name, {})
        changed = [part for part in digests if digests[part] != other.get(part)]
        if changed:
            lines.append(f"{name}: {', '.join(changed)} differ")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--against", type=Path, help="a file of the same machine to compare with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        digests = train_all(Path(folder))
    arguments.out.write_text(json.dumps(digests, indent=1) + "\n")
    if arguments.against is None:
        return
    lines = differences(json.loads(arguments.against.read_text()), digests)
    print("\n".join(lines) or f"{len(digests)} runs, all bits equal")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
