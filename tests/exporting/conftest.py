"""A run to be exported, trained once: RGB pictures of two sizes, a timm network that scales nothing, an average."""

from __future__ import annotations

from pathlib import Path

import pytest

from spacedkd.cli import main
from tests.data.on_disk import class_folders

SHORT = "--epochs 2 --batch-size 8 --lr 0.02 --precision 32-true --threads 1".split()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    class_folders(place / "pictures", classes=("cat", "dog", "eel"), count=8, sizes=(12, 15))
    network = "--network resnet18_small --width 4 --set network.layers=[1,1,1,1] --image-size 12".split()
    run = ["--method", "kd", "--interval", "1ep", "--ema", "0.9", "--out", str(place / "run")]
    main(["train", "--data", str(place / "pictures"), *network, *SHORT, *run])
    return place
