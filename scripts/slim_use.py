"""What the slim install must do, with torch, numpy and safetensors alone; run by `scripts.release_check` and a test.

python -m scripts.slim_use FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spacedkd import Snapshots, SnapshotTeacher, Spaced, Spacing, losses, seeded_loader

HEAVY = {"torchvision", "timm", "PIL", "pyarrow", "scipy", "sklearn", "cv2", "rich", "tyro", "lightning_fabric"}


def main(folder: Path) -> None:
    """Train a teacher that saves snapshots, and a student that replays it; then import what the install lacks."""
    data = TensorDataset(torch.rand(32, 4), torch.arange(32) % 3)
    network, student = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    snapshots, last = Snapshots(folder, every=4, total=8), network.weight
    for step, (inputs, labels) in enumerate(seeded_loader(data, 8, seed=0, steps=range(8))):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        snapshots.after(step + 1, network)
    teacher = SnapshotTeacher(folder, interval=4, network=lambda: nn.Linear(4, 3))
    for step, (inputs, _) in enumerate(seeded_loader(data, 8, seed=0, steps=range(8))):
        loss = losses.kl(student(inputs), teacher.seek(step)(inputs), temperature=4.0)
        loss.backward()
    assert loss.isfinite()
    assert torch.equal(next(teacher.network.parameters()), last)
    for _ in Spacing(folder / "both", every=4).steps(seeded_loader(data, 8, seed=0, steps=range(8)), save=network):
        pass
    assert Spacing(folder / "both", every=4).teacher(network).folder == folder / "both"
    roles = [turn.role for turn in Spaced("2st").turns(("teacher", "student"), range(2))]
    assert roles == ["teacher", "teacher", "student", "student"]
    assert not HEAVY & {*sys.modules}
    try:
        from spacedkd import train  # noqa: F401
    except ImportError as error:
        print(error)
    else:
        raise SystemExit("spacedkd.train could be imported without the libraries it needs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
