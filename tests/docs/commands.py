"""Commands of the docs: understood by the real command line, which stops where it would begin to work."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm

from spacedkd import RunSpec
from spacedkd.cli import COMMANDS, main
from spacedkd.config.resolve import resolve_method
from spacedkd.config.serialization import to_json
from spacedkd.runs.folder import RunFolder
from tests.docs.blocks import ROOT

STARTERS = ("torchrun", "srun")
"""programs that start others, whose flags are not ours"""
OTHERS = ("ray", "source", "cd", "docker", "tensorboard")
LOOKED_INTO = ("train", "compare", "evaluate", "report", "reproduce")
"""verbs that are followed to where they would begin to work; of others the words are parsed"""
_WORK = (
    "spacedkd.cli.train.show_plan",
    "spacedkd.cli.compare.show_comparison_plan",
    "spacedkd.comparison.results.find_runs",
    "spacedkd.training.trained_models.load_network",
    "spacedkd.cli.evaluate._folders",
    "spacedkd.cli.reproduce._print_catalogue",
    "spacedkd.cli.reproduce._print_plan",
    "spacedkd.cli.reproduce._train",
)


class Understood(BaseException):
    """Everything that was typed has a meaning, and the work would begin."""


def check(command: str) -> None:
    """Fail unless whoever types this gets what it says."""
    words = [*dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), shlex.split(command))]
    examples = [word for word in words if re.fullmatch(r"examples/\w+\.py", word)]
    if words[0] in STARTERS and not examples:
        words = words[words.index("spacedkd") :]
    if words[0] in ("python", *STARTERS) and examples:
        assert (ROOT / examples[0]).exists(), command
    elif words[0] == "spacedkd":
        check_ours(words[1:])
    elif words[0] == "make":
        assert all(re.search(rf"^{target}:", _text("Makefile"), re.MULTILINE) for target in words[1:]), command
    elif words[:2] == ["python", "-m"]:
        _check_module(words[2], words[3:])
    elif words[:2] == ["pip", "install"]:
        _check_extras(words[2:])
    else:
        assert words[0] in OTHERS, f"{command!r}: no command that is known here; what is printed is marked as text"


def check_ours(words: Sequence[str]) -> None:
    """A command line of spacedkd, up to where it would begin to work."""
    if words[0] in ("list", "--version"):
        main(words)  # takes no time
        return
    assert words[0] in COMMANDS, words
    for flag, place in pairwise(words):
        if flag in ("--resume", "--spec", "--extend"):
            _begun(Path(place))
    with _no_work():
        try:
            main(words)
        except Understood:
            return
    raise AssertionError(f"nothing would be done: {shlex.join(words)}")


@contextmanager
def _no_work() -> Iterator[None]:
    parsed = {name: _parsed(verb) for name, verb in COMMANDS.items() if name not in LOOKED_INTO}
    with (
        patch.dict(COMMANDS, parsed),
        patch("spacedkd.training.train.train_run", lambda spec, *_, **__: _understood(spec)),
        patch("spacedkd.comparison.compare.compare", lambda arms, *_, **__: _understood(*arms.values())),
        patch("spacedkd.cli.train.extend_spec", lambda spec, *_: spec),
        patch.object(RunFolder, "spec_to_resume", lambda self, spec: spec),
        ExitStack() as stack,
    ):
        for name in _WORK:
            stack.enter_context(patch(name, side_effect=Understood))
        yield


def _parsed(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb with the same flags that does nothing."""

    @wraps(verb)
    def understood(*_: object, **__: object) -> None:
        raise Understood

    return understood


def _understood(*specs: RunSpec) -> None:
    for spec in specs:
        if ":" not in spec.method.name:
            resolve_method(spec)
        for network in filter(None, (spec.network, spec.teacher)):
            assert ":" in network.name or timm.is_model(network.name), network.name
    raise Understood


def _begun(run: Path) -> None:
    """A run that was begun before, as far as the command line looks."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "spec.json").write_text(json.dumps(to_json(RunSpec())))


def _check_module(name: str, flags: Sequence[str]) -> None:
    found: Any = importlib.util.find_spec(name)
    assert found is not None, name
    if found.submodule_search_locations:
        found = importlib.util.find_spec(f"{name}.__main__")
    source = Path(found.origin).read_text()
    assert all(f'"{flag}"' in source for flag in flags if flag.startswith("--")), (name, flags)


def _check_extras(words: Sequence[str]) -> None:
    known = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
    for word in words:
        if extras := re.search(r"\[(.*)\]", word):
            assert {*extras[1].split(",")} <= {*known}, word


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
