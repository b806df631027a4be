"""Several processes that share each batch learn what one learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import tensors

# Without BatchNorm, and without the feature norm over the whole batch, a batch may be split without a difference.
SPLITTABLE = (
    "--network vit_tiny_patch16_224 --set network.img_size=8 --set network.patch_size=2 --set network.embed_dim=24 "
    "--set network.depth=2 --set network.num_heads=2 --set method.feature_weight=0 --interval 1.5ep"
)


def trained(folder: Path, flags: str, devices: int, batch_size: int = 16) -> Path:
    common = "--train-limit 64 --epochs 3 --lr 0.05 --accelerator cpu --precision 32-true --threads 1"
    words = f"train --out {folder} --devices {devices} --batch-size {batch_size} {common} {flags}".split()
    subprocess.run([sys.executable, "-m", "spacedkd", *words], check=True, stdout=subprocess.DEVNULL, timeout=120)
    return folder


def assert_one_and_two_processes_agree(folder: Path, flags: str) -> None:
    one, two = (tensors(trained(folder / str(n), flags, n, batch_size=15)) for n in (1, 2))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-6, rtol=1e-4)


def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """Also from batches of 15 and 4 images, which do not split evenly or not like the others."""
    assert_one_and_two_processes_agree(tmp_path, SPLITTABLE)


@pytest.mark.parametrize("variant", ["live", "snapshot"])
def test_self_kd_whose_roles_share_a_network(tmp_path: Path, variant: str) -> None:
    """Each of its roles leaves some of the network's weights without gradients."""
    assert_one_and_two_processes_agree(tmp_path, f"{SPLITTABLE} --method self-kd --set method.variant={variant}")
