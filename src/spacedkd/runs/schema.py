"""Types of the JSON files in a run's folder, and the one reader that checks a file against its type.

A type is a `TypedDict`. Its annotations say what a file must hold: `str`, `bool`, `int`, `float` (a finite number, also
written as a whole one), `X | None`, `Literal`, `list[X]`, `Mapping[str, X]`, another `TypedDict`, or anything (`Any`).
`Annotated` adds limits (`Between`) or names that a mapping must have (`Requires`). Keys that a type does not name are
allowed, because a later version may have written them.

`read_checked` reads a file, `check` looks at a value that was read already, and `valid_items` keeps what is valid of a
file that may be damaged without harm. Files of other packages (evaluation.json, comparison.json) are checked the same
way: declare a `TypedDict` next to the code that writes the file.

    class Example(TypedDict):
        name: str
        images: PositiveCount
        accuracy: Annotated[Mapping[str, Share], Requires("final")]
        label: NotRequired[str | None]

    document = read_checked(path, Example, within=folder, way_out="Delete it to measure again.")
"""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import CannotRead, Damaged, format_value
from spacedkd.runtime.files import Folder

Document = TypeVar("Document")


@dataclass(frozen=True)
class Between:
    """Limits of a number, both included."""

    least: float
    most: float = sys.float_info.max


class Requires:
    """Names that a mapping must have, among others."""

    def __init__(self, *names: str) -> None:
        self.names = names


Count = Annotated[int, Between(0, 2**63)]
PositiveCount = Annotated[int, Between(1, 2**63)]
NonNegative = Annotated[float, Between(0)]
Share = Annotated[float, Between(0, 1)]
"""a number from 0 to 1, such as an accuracy"""


Score = Annotated[float, Between(-sys.float_info.max, 1)]
"""an accuracy, or the metric that another task has in its place; R^2 may be below 0"""

# Files of a run.


class CostDocument(TypedDict):
    """Updates, passes and images of a run: `cost` and `plan.computed_here` in result.json."""

    updates: Count
    forward_passes: Count
    backward_passes: Count
    forward_images: Count
    backward_images: Count
    by_model: NotRequired[Mapping[str, Count]]
    """the counts that the totals are sums of; files of earlier versions have none"""


COST_TOTALS = ("updates", "forward_passes", "backward_passes", "forward_images", "backward_images")
"""the keys of `CostDocument` that are totals over all models"""


class BestDocument(TypedDict):
    """best/measured.json: the epoch of the student in `best/`, and its accuracy on each split of the data."""

    chosen_on: str
    turn: Count
    epoch: NonNegative
    accuracy: Mapping[str, Score]


class PlanDocument(TypedDict):
    """`plan` in result.json: facts of a run that are not in its spec."""

    roles: list[str]
    """names of the roles, from the leader to the student"""
    learners: Mapping[str, str]
    """role -> model it updates"""
    steps_per_epoch: PositiveCount
    total_steps: PositiveCount
    test_images: PositiveCount
    best: NotRequired[BestDocument]
    """best student, in runs with held-out images"""
    computed_here: NotRequired[CostDocument]
    """cost of this run alone, in runs that replayed a teacher"""
    skipped_updates: NotRequired[Mapping[str, Count]]
    """role -> updates left out because of numbers that were not finite"""


class OtherScores(TypedDict):
    """A metric beside the one that a run is judged by, at the last and at the best epoch."""

    last: float
    best: float


class HeadScores(TypedDict):
    """Accuracy, or the metric in its place, of one head of one role on one part of the data."""

    last: Score
    best: Score
    best_epoch: NonNegative
    metrics: NotRequired[Mapping[str, OtherScores]]
    """other metrics of the task by name, such as mse; classification has none"""


RoleScores = Annotated[Mapping[str, Annotated[Mapping[str, HeadScores], Requires("final")]], Requires("test")]
"""part of the data -> head -> scores; "final" is the deepest head"""


class ResultDocument(TypedDict):
    """result.json, which a run writes last of all."""

    label: NotRequired[str]
    seed: NotRequired[int]
    fingerprint: str
    accuracy: Mapping[str, RoleScores]
    best_chosen_on: Literal["test", "holdout"]
    cost: CostDocument
    seconds: NonNegative
    plan: PlanDocument
    environment: Mapping[str, Any]
    digests: NotRequired[Mapping[str, str]]
    """SHA-256 of the journal, and of the weights in student/, average/ and best/; earlier versions wrote none"""


class ClassName(TypedDict):
    """One class of a run's data."""

    name: str
    number: NotRequired[Count]
    label: NotRequired[Any]
    """label of the class in the data: a number, a text, or the name of a folder"""


class ClassesDocument(TypedDict):
    """classes.json: the classes of a run's data, and a digest that shows whether the data has changed."""

    classes: list[ClassName]
    items: Mapping[str, Count]
    """part of the data -> number of images"""
    notes: NotRequired[list[str]]
    digest: NotRequired[Mapping[str, Mapping[str, Any]] | None]
    """part of the data -> what its images and labels hash to; earlier versions wrote none"""
    repeated: NotRequired[Mapping[str, Count]]
    """part of the data -> images in it that are training images, too"""


LARGEST_LOSS = 1e300
"""so that losses of this size can still be added and drawn"""


class AccuracyEntry(TypedDict):
    """A line of journal.jsonl with a role's accuracy."""

    event: Literal["accuracy"]
    role: str
    epoch: NonNegative
    turn: NotRequired[Count]
    step: NotRequired[Count]
    accuracy: Annotated[Mapping[str, Annotated[Mapping[str, Score], Requires("final")]], Requires("test")]
    """part of the data -> head -> share of the images, or the `metric` that another task has in its place"""
    metric: NotRequired[str]
    """name of the metric, where it is not the accuracy of classification"""
    metrics: NotRequired[Mapping[str, Mapping[str, Mapping[str, float]]]]
    """part of the data -> head -> other metrics by name"""


class LossEntry(TypedDict):
    """A line of journal.jsonl with the terms of a role's loss."""

    event: Literal["loss"]
    role: str
    epoch: NonNegative
    turn: NotRequired[Count]
    step: NotRequired[Count]
    lr: NotRequired[float]
    losses: Mapping[str, Annotated[float, Between(-LARGEST_LOSS, LARGEST_LOSS)]]


_Amount = Annotated[float, Between(0, 1e12)]


class ProgressDocument(TypedDict, total=False):
    """.progress.json: how far a run is, written every few seconds by the process that trains it."""

    host: str
    process: _Amount
    time: _Amount
    """time at which this file was written, in seconds since 1970"""
    turn: _Amount
    turns: _Amount
    role: str
    roles: list[str]
    step: _Amount
    steps: _Amount
    epoch: _Amount
    epochs: _Amount
    images_per_second: _Amount
    seconds_left: _Amount
    saved: _Amount
    """turns of the latest checkpoint"""
    waiting: str
    """snapshot or process that the run waits for"""
    ended: Literal["stopped", "killed", "failed", "diverged"]
    said: str
    """the error that ended it"""


class FailureDocument(TypedDict, total=False):
    """failed.json or diverged.json of a run of a comparison: the error that ended it."""

    said: str
    """the error, in one line"""
    role: str
    step: Count
    traceback: list[str]


# Numbers over seeds, in evaluation.json and comparison.json.


class Interval(TypedDict):
    """A mean with its 95 % interval, whose ends are None where one value gives none."""

    mean: float
    low: float | None
    high: float | None


class Estimate(Interval):
    """A mean over n seeds with its interval."""

    n: int


class PairedDifference(Estimate):
    """A mean difference paired by seed, and the p-value of its paired t-test."""

    p: float | None


# The reader.


def read_checked(
    path: Path,
    form: type[Document],
    *,
    within: Folder | Path | None = None,
    rule: Callable[[Document], None] = lambda document: None,
    way_out: str = "",
) -> Document:
    """Return the contents of a JSON file of this type, a `TypedDict`.

    `rule` checks what annotations cannot say, and raises a ValueError. A file that does not fit is refused as
    `Damaged`, in one line that ends with the `way_out`; a link below `within` is refused as `Linked`, and a file that
    is missing stays a `FileNotFoundError`.
    """
    try:
        document = read_json(path, within)
        try:
            check(document, form)
            rule(document)
        except ValueError as error:
            raise Damaged(f"{path} cannot be read: {error}.") from None
    except (CannotRead, Damaged) as error:
        raise Damaged(f"{error} {way_out}".rstrip()) from None
    return cast(Document, document)


def check(value: object, form: type[Document], name: str = "") -> Document:
    """Return the value, if it is of this type; a ValueError names the first thing in it that is not.

    >>> check({"said": "out of memory", "step": -1}, FailureDocument)
    Traceback (most recent call last):
    ValueError: step is -1, not a whole number from 0 up
    >>> check([], FailureDocument, "failed.json")
    Traceback (most recent call last):
    ValueError: failed.json is [], not an object
    """
    _checker(cast(Hashable, form))(value, name)
    return cast(Document, value)


def valid_items(values: Mapping[str, Any], form: type[Document]) -> Document:
    """Return those items of an object that fit this type; all others are left out.

    >>> valid_items({"said": "out of memory", "step": "seven", "other": 1}, FailureDocument)
    {'said': 'out of memory'}
    """
    checkers = _item_checkers(cast(Hashable, form))
    items = {key: value for key, value in values.items() if key in checkers and _fits(value, checkers[key])}
    return cast(Document, items)


Checker = Callable[[Any, str], None]
"""raises a ValueError, in which a value has this name, if the value does not fit"""


def _fits(value: Any, checker: Checker) -> bool:
    try:
        checker(value, "it")
    except ValueError:
        return False
    return True


@cache
def _checker(form: Any) -> Checker:
    """Return the checker of an annotation; it is made once, because a journal has many lines."""
    origin, arguments = get_origin(form), get_args(form)
    if is_typeddict(form):
        return _object_checker(form)
    if origin is Annotated:
        return _limited_checker(*arguments)
    if origin is Literal:
        return _checker_of(lambda value: value in arguments, f"one of {', '.join(map(str, arguments))}")
    if origin in (Union, UnionType):
        return _optional_checker(form)
    if origin in (list, Sequence):
        return _list_checker(_checker(arguments[0]))
    if origin in (dict, Mapping):
        return _mapping_checker(_checker(arguments[1]), required=())
    if form in (int, float):
        return _number_checker(form, Between(-sys.float_info.max))
    if form is Any or form is object:
        return lambda value, name: None
    return _checker_of(lambda value: isinstance(value, form), {str: "text", bool: "true or false"}[form])


def _refusal(value: Any, name: str, expected: str) -> ValueError:
    return ValueError(f"{name or 'it'} is {format_value(value)}, not {expected}")


def _checker_of(fits: Callable[[Any], bool], expected: str) -> Checker:
    def check_value(value: Any, name: str) -> None:
        if not fits(value):
            raise _refusal(value, name, expected)

    return check_value


def _limited_checker(form: Any, *limits: Between | Requires) -> Checker:
    (limit,) = limits
    if isinstance(limit, Requires):
        return _mapping_checker(_checker(get_args(form)[1]), limit.names)
    return _number_checker(form, limit)


def _number_checker(form: type[int] | type[float], limits: Between) -> Checker:
    kinds = int if form is int else (int, float)
    noun = "a whole number" if form is int else "a number"
    if limits.most >= 2**63:
        noun += "" if limits.least < 0 else f" from {limits.least:g} up"
    else:
        noun += f" from {limits.least:g} to {limits.most:g}"

    def check_number(value: Any, name: str) -> None:
        # A bool is an int in Python, and a comparison with NaN is False.
        if isinstance(value, bool) or not isinstance(value, kinds) or not limits.least <= value <= limits.most:
            raise _refusal(value, name, noun)

    return check_number


def _optional_checker(form: Any) -> Checker:
    (inner,) = (_checker(argument) for argument in get_args(form) if argument is not NoneType)

    def check_optional(value: Any, name: str) -> None:
        if value is not None:
            inner(value, name)

    return check_optional


def _list_checker(inner: Checker) -> Checker:
    def check_list(value: Any, name: str) -> None:
        if not isinstance(value, list):
            raise _refusal(value, name, "a list")
        for number, item in enumerate(value):
            inner(item, f"{name}[{number}]")

    return check_list


def _mapping_checker(inner: Checker, required: Sequence[str]) -> Checker:
    def check_mapping(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise _refusal(value, name, "an object")
        for key in required:
            if key not in value:
                raise ValueError(f"{_join(name, key)} is missing")
        for key, item in value.items():
            inner(item, _join(name, key))

    return check_mapping


def _object_checker(form: Any) -> Checker:
    checkers, required = _item_checkers(form), form.__required_keys__

    def check_object(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise _refusal(value, name, "an object")
        for key, checker in checkers.items():
            if key in value:
                checker(value[key], _join(name, key))
            elif key in required:
                raise ValueError(f"{_join(name, key)} is missing")

    return check_object


@cache
def _item_checkers(form: Any) -> Mapping[str, Checker]:
    """Return the checkers of a `TypedDict`'s values by their keys."""
    hints = get_type_hints(form, include_extras=True).items()
    return {key: _checker(get_args(hint)[0] if get_origin(hint) is NotRequired else hint) for key, hint in hints}


def _join(name: str, key: str) -> str:
    key = key if len(key) <= 60 else f"{key[:60]}..."  # a damaged file may have any key
    return f"{name}.{key}" if name else key
