"""Dependencies point one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spacedkd"

# Each layer may import itself and the layers above it in this list.
LAYERS = [
    {
        "documents",
        "errors",
        "files",
        "locks",
        "machine",
        "own_code",
        "seeds",
        "started",
        "stopping",
        "torchvision_operators",
    },
    {
        "duration",
        "extends",
        "schedule",
        "json_form",
        "learning_rate",
        "logger_names",
        "method_names",
        "spec",
        "spec_words",
        "data_spec",
        "optimizer_spec",
        "engine_spec",
        "places",
        "quirks",
        "recipes",
        "result_form",
        "curves",
        "run",
        "run_state",
    },
    {"data"},
    {"models"},
    {"methods"},
    {"evaluation"},
    {"training"},
    {"snapshots"},
    {"integrations"},
    {"experiments"},
    {"report"},
    {"exporting"},
    {"theory"},
    {"cli"},
]
ALL_FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_up_the_list(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    used = {name.split(".")[1] for name in imports(path) if name.startswith("spacedkd.")}
    assert {other for other in used if layer(other) > layer(part)} == set()


def outside(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - {"spacedkd", "__future__"}


def test_the_schedule_and_the_spec_need_only_the_standard_library() -> None:
    for name in (
        "errors.py",
        "files.py",
        "locks.py",
        "machine.py",
        "own_code.py",
        "seeds.py",
        "stopping.py",
        "duration.py",
        "schedule.py",
        "extends.py",
        "json_form.py",
        "spec.py",
        "places.py",
        "quirks.py",
        "recipes.py",
        "learning_rate.py",
        "logger_names.py",
        "method_names.py",
        "result_form.py",
        "run.py",
        "run_state.py",
        "spec_words.py",
    ):
        assert outside(SOURCE / name) <= set(sys.stdlib_module_names)


def test_pages_and_tables_come_from_files_and_never_import_torch() -> None:
    paths = [
        *(SOURCE / "report").rglob("*.py"),
        *(SOURCE / "theory" / f"{name}.py" for name in ("page", "plots", "words")),
    ]
    parts = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths]
    names = [".".join(part for part in one if part != "__init__") for one in parts]
    code = f"import sys, {', '.join(names)}; print({{'torch', 'timm', 'numpy', 'scipy'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_only_training_touches_the_distributed_engine_and_imports_it_in_one_place() -> None:
    users = {path.relative_to(SOURCE).as_posix() for path in ALL_FILES if "lightning_fabric" in outside(path)}
    assert users == {"training/fabric.py", "training/log_files.py"}  # which nobody imports without the other


def test_a_run_imports_nothing_of_other_trainers() -> None:
    """Fabric would import torchmetrics to know its version, and that transformers; afterwards it is as it was."""
    code = (
        "import sys, spacedkd.training.loop; assert not {'torchmetrics', 'transformers', 'lightning'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_of_json_yaml_and_toml_are_parsed_in_one_place() -> None:
    parsers = re.compile(r"\bjson\.loads?\(|\btomllib\b|\byaml\.(safe_|full_|unsafe_)?load")
    users = {path.relative_to(SOURCE).as_posix() for path in ALL_FILES if parsers.search(path.read_text())}
    # What is typed after --set, and settings on their way to JSON and back, come from no file.
    assert users == {"documents.py", "cli/typed.py", "training/same_path.py"}


def test_no_file_is_called_by_a_name_that_says_nothing() -> None:
    assert not {path.stem for path in ALL_FILES} & {"utils", "common", "helpers", "misc"}


def test_torchvision_is_only_imported_where_it_was_made_importable() -> None:
    """timm imports it too; a package declares its operators before anything in the package is imported."""
    for path in ALL_FILES:
        if outside(path) & {"timm", "torchvision", "lightning", "transformers"}:
            first = path if path.parent == SOURCE else path.parent / "__init__.py"
            assert "spacedkd.torchvision_operators" in imports(first), path


def test_methods_are_listed_without_torch() -> None:
    code = (
        "import sys; from spacedkd.methods import METHODS, build_method; "
        "assert len(METHODS) == 19 and 'kd' in METHODS and 'torch' not in sys.modules; "
        "assert METHODS['kd'].__name__ == 'KD' and 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_timm_knows_our_networks_after_the_import() -> None:
    code = "import spacedkd.models, timm; timm.create_model('resnet18_small', width=2)"
    subprocess.run([sys.executable, "-c", code], check=True)
