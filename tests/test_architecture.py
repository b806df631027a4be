"""Dependencies point one way."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spacedkd"

# Each layer may import itself and the layers above it in this list. A module that is named by itself is in that layer,
# not in its package's.
LAYERS = [
    {"runtime"},
    {"schedule", "timeline", "averages"},
    {"config"},
    {"learning_rate"},
    {"runs"},
    {"methods.losses", "task"},
    {"data"},
    {"models"},
    {"methods"},
    {"evaluation"},
    {"config.objects", "config.resolve"},
    {"training.build"},
    {"trajectory"},
    {"experimental"},
    {"training"},
    {"integrations"},
    {"evaluation.evaluate"},
    {"comparison"},
    {"reporting"},
    {"exporting"},
    {"paper"},
    {"cli"},
]
DOCS = SOURCE.parents[1] / "docs" / "architecture.md"
ALL_FILES = sorted(SOURCE.rglob("*.py"))


@cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def layer(module: str) -> int:
    """Return the number of the layer that names the module, or else its package."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    numbers = [number for name in names for number, layer in enumerate(LAYERS) if name in layer]
    assert numbers, f"{module} is in no layer: name it, or its package, in LAYERS"
    return numbers[0]


def own_modules(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, without the package's own name."""
    names = {name.removeprefix("spacedkd.") for name in imports(path) if name.startswith("spacedkd.")}
    return {name for name in names if (SOURCE / f"{name.replace('.', '/')}.py").exists() or is_package(name)}


def is_package(name: str) -> bool:
    return (SOURCE / name.replace(".", "/") / "__init__.py").exists()


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_up_the_list(path: Path) -> None:
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    if module in ("__init__", "__main__"):
        return
    used = {name for name in own_modules(path) if not is_package(name)}
    assert {other for other in used if layer(other) > layer(module)} == set()


def test_the_documented_picture_shows_every_layer_in_order() -> None:
    (picture,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(), re.S)
    heads = [re.split(r"  +", line)[0] for line in picture.splitlines()]
    assert [{*head.split(", ")} for head in heads] == LAYERS


def test_the_documented_loop_is_the_loop() -> None:
    (excerpt,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    module = ast.parse((SOURCE / "training" / "loop.py").read_text())
    (loop,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "training_loop")
    documented = [ast.unparse(statement) for statement in ast.parse(excerpt).body]
    _, *statements = (ast.unparse(statement) for statement in loop.body)  # without the docstring
    assert documented == statements[: len(documented)]
    assert documented[-1].startswith("for block in")


def outside(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - {"spacedkd", "__future__"}


def test_the_schedule_and_the_spec_need_only_the_standard_library() -> None:
    names = [
        *((SOURCE / "runtime").glob("*.py")),
        *(path for path in (SOURCE / "config").glob("*.py") if path.stem not in ("objects", "resolve")),
        *(
            SOURCE / name
            for name in (
                "schedule.py",
                "timeline.py",
                "learning_rate.py",
                "runs/journal.py",
                "runs/result.py",
                "runs/status.py",
            )
        ),
    ]
    # imported where they are used: a spec in YAML, the repair of torchvision, tables of a run for Python
    heavy = {"yaml", "torch", "pandas"}
    for path in names:
        assert outside(path) - heavy <= set(sys.stdlib_module_names), path


Loaded = dict[str, set[str]]
"""the modules that one process has after each of several steps, by the step's name"""


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """One process does what imports little first, so that each step shows whether it imports what only a later may."""
    pages = [
        *(SOURCE / "reporting").rglob("*.py"),
        *(SOURCE / "paper" / "report").rglob("*.py"),
        *(SOURCE / "paper" / "theory" / f"{name}.py" for name in ("page", "findings")),
    ]
    training = {SOURCE / "paper" / f"{name}.py" for name in ("reproduce", "store", "theory/experiment")}
    steps = {
        "pages and tables": import_all(pages),
        "paper": import_all([*({*(SOURCE / "paper").rglob("*.py")} - training)]),
        "list of methods": "from spacedkd.methods import METHODS, build_method; assert 'kd' in METHODS",
        "a method": "assert METHODS['kd'].__name__ == 'KD'",
        "networks": "import spacedkd.models, timm; timm.create_model('resnet18_small', width=2)",
        "training": "import spacedkd.training.train",
    }
    code = "import json, sys; steps = {}; "
    code += "; ".join(f"{step}; steps[{name!r}] = [*sys.modules]" for name, step in steps.items())
    code += "; print(json.dumps(steps))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name: {*modules} for name, modules in json.loads(printed).items()}


def import_all(paths: list[Path]) -> str:
    """Return the statement that imports the modules at these paths."""
    parts = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths]
    return f"import {', '.join('.'.join(part for part in module if part != '__init__') for module in parts)}"


def test_pages_and_tables_come_from_files_and_never_import_torch(loaded: Loaded) -> None:
    assert loaded["pages and tables"] & {"torch", "timm", "numpy", "scipy"} == set()


def test_in_paper_only_what_trains_imports_torch(loaded: Loaded) -> None:
    assert loaded["paper"] & {"torch", "timm"} == set()


def test_only_training_touches_the_distributed_engine_and_imports_it_in_one_place() -> None:
    users = {path.relative_to(SOURCE).as_posix() for path in ALL_FILES if "lightning_fabric" in outside(path)}
    assert users == {"training/distributed.py", "training/loggers.py"}


def test_a_run_imports_nothing_of_other_trainers(loaded: Loaded) -> None:
    """Fabric would import torchmetrics to know its version, and that transformers; afterwards it is as it was."""
    assert {"torch", "lightning_fabric"} <= loaded["training"]
    assert loaded["training"] & {"torchmetrics", "transformers", "lightning"} == set()


def test_files_of_json_yaml_and_toml_are_parsed_in_one_place() -> None:
    parsers = re.compile(r"\bjson\.loads?\(|\btomllib\b|\byaml\.(safe_|full_|unsafe_)?load")
    users = {path.relative_to(SOURCE).as_posix() for path in ALL_FILES if parsers.search(path.read_text())}
    # What is typed after --set, and settings on their way to JSON and back, come from no file.
    assert users == {"runtime/documents.py", "cli/flags.py", "trajectory/store.py"}


def test_no_file_is_called_by_a_name_that_says_nothing() -> None:
    assert not {path.stem for path in ALL_FILES} & {"utils", "common", "helpers", "misc"}


def test_methods_are_listed_without_torch(loaded: Loaded) -> None:
    assert "torch" not in loaded["list of methods"]
    assert "torch" in loaded["a method"]


def test_timm_knows_our_networks_after_the_import(loaded: Loaded) -> None:
    """The process has made one by its name."""
    assert "timm" not in loaded["paper"]
    assert "timm" in loaded["networks"]
