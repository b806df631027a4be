"""torchvision can be imported beside any build of torch, in whatever order it, timm and this package are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = "import torch, torchvision"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def fits() -> bool:
    """Whether torchvision's native library fits this torch, so that it needs no help."""
    return run(FIRST).returncode == 0


@pytest.mark.parametrize(
    "order", ["torchvision timm spacedkd", "timm spacedkd torchvision", "spacedkd timm torchvision"]
)
def test_any_order_works_from_the_import_of_this_package_on(order: str, fits: bool) -> None:
    """What a user imports before may fail, as it does without this package; the same import then works after it."""
    tries = "\n".join(
        f"try:\n    import {name}\nexcept RuntimeError as error:\n    assert 'nms' in str(error)\n    print('{name}')"
        for name in order.split()
    )
    use = (
        "import torch, timm, spacedkd.models, torchvision.transforms as T\n"
        "timm.create_model('resnet18_small', width=2)\n"
        "assert T.Resize(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)\n"
        "print('works')"
    )
    done = run(f"{tries}\n{use}")
    assert done.returncode == 0, done.stderr
    failed = done.stdout.split()[:-1]
    assert done.stdout.split()[-1] == "works"
    assert failed == ([] if fits else order.partition("spacedkd")[0].split())


def test_the_package_imports_no_torch_for_it() -> None:
    look = "importlib.util.find_spec('torchvision'); print({*sys.modules} & {'torch'})"
    done = run(f"import sys, importlib.util, spacedkd; {look}")
    assert done.stdout == "set()\n", done.stderr
