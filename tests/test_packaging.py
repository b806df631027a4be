"""What is given away: the wheel, the image, and the workflows that make them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from scripts.release_check import check_wheel, says_how_to_add_the_rest

from spacedkd.runtime.errors import TRAIN_MODULES

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the repository holds, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(folder)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    check_wheel(wheel)
    archive = zipfile.ZipFile(wheel)
    files = {"py.typed", "__init__.pyi", "reporting/look.css", "reporting/study.json"}
    assert {f"spacedkd/{name}" for name in files} <= {*archive.namelist()}
    (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    said = Parser().parsestr(archive.read(metadata).decode())
    assert said["Requires-Python"] == ">=3.11"
    assert said["License-Expression"] == "Apache-2.0"
    assert {*(said.get_all("Provides-Extra") or ())} == {*PROJECT["optional-dependencies"]}


def needed_by(requirements: Iterable[str]) -> set[str]:
    """Return the distributions here that these requirements, and theirs, ask for."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        waiting += map(Requirement, metadata.requires(requirement.name) or ())
    return found


def slim_environment(wheel: Path, folder: Path) -> Path:
    """Return the Python of an environment with the wheel and what it asks for: links to what is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    for name in needed_by(PROJECT["dependencies"]):
        installed = metadata.distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    return folder / "bin" / "python"


def test_a_slim_install_does_what_it_is_for_and_names_the_extra_for_the_rest(wheel: Path, tmp_path: Path) -> None:
    assert needed_by(PROJECT["dependencies"]).isdisjoint({"timm", "torchvision", "pyarrow", "scipy", "pillow", "numba"})
    python = slim_environment(wheel, tmp_path / "venv")

    def run(*words: str | Path) -> tuple[int, str]:
        command = [python, "-I", *words]
        pipe, errors = subprocess.PIPE, subprocess.STDOUT
        done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=errors, text=True, check=False)
        return done.returncode, done.stdout

    code, printed = run("-W", "error", ROOT / "scripts" / "slim_use.py", tmp_path / "teacher")
    assert code == 0, printed
    says_how_to_add_the_rest(printed.splitlines()[-1])  # after what the snapshots will take
    code, printed = run("-m", "spacedkd", "train")
    assert code == 2
    says_how_to_add_the_rest(printed)
    code, printed = run("-c", "import spacedkd; spacedkd.read_spec('spec.yaml')")
    assert "spec.yaml" in printed
    (tmp_path / "spec.yaml").write_text("epochs: 3")
    assert "PyYAML" in run("-c", "import spacedkd; spacedkd.read_spec('spec.yaml')")[1].splitlines()[-1]


def test_every_library_of_the_extra_train_is_one_that_a_message_can_name() -> None:
    libraries = {Requirement(text).name for text in PROJECT["optional-dependencies"]["train"]}
    modules = metadata.packages_distributions()
    assert {name for module in TRAIN_MODULES for name in modules[module]} >= libraries - {"imagecorruptions-imaug"}
    assert "imagecorruptions" in TRAIN_MODULES


def test_every_python_that_is_named_is_tried() -> None:
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert named == PYTHONS
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS


def test_every_extra_is_in_all_or_for_those_who_work_on_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    gathered = re.fullmatch(r"spacedkd\[(.*)\]", extras["all"][0])
    assert gathered is not None
    assert {*gathered[1].split(",")} == {*extras} - {"all", "docs", "dev", "mlflow"}
    assert "spacedkd[all,docs]" in extras["dev"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_is_there(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = [word for step in steps for word in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))]
    assert targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert all("@" in step["uses"] for step in steps if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}


def test_only_the_job_that_publishes_may_prove_who_it_is() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_can_be_read(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name != "config.yml":
        names = [field["id"] for field in form["body"]]
        assert len({*names}) == len(names) > 0
        assert form["name"]
        assert form["description"]


def test_the_image_gets_what_it_copies() -> None:
    """Everything is kept from the build but what is named; what is copied must be."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == names
    assert all((ROOT / name).exists() for name in names)
