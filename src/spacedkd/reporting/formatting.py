"""Numbers as text: percent with one decimal, a real minus sign, thin spaces between thousands."""

import math
from collections.abc import Callable, Sequence

from spacedkd.runs.schema import Interval, PairedDifference

THIN_SPACE = "\N{THIN SPACE}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
DASH = "\N{EN DASH}"

Write = Callable[[float], str]


def percent(part: float) -> str:
    """Return a part of one in percent, without the sign.

    >>> percent(0.7327)
    '73.3'
    """
    return f"{100 * part:.1f}".replace("-", MINUS)


def decimals(places: int) -> Write:
    """Return a function that writes numbers with this number of decimals.

    >>> decimals(2)(-0.5) == MINUS + "0.50"
    True
    """
    return lambda value: f"{value:.{places}f}".replace("-", MINUS)


def points(part: float) -> str:
    """Return a difference of accuracies in percentage points, with its sign; what is written as zero has none.

    >>> points(0.0052), points(0.0), points(-0.0004)
    ('+0.5', '0.0', '0.0')
    """
    written = f"{abs(100 * part):.1f}"
    sign = "" if float(written) == 0 else "+" if part > 0 else MINUS
    return f"{sign}{written}"


def bounds(value: Interval) -> Sequence[float]:
    """Return low and high end of the interval of a mean or a difference; empty where one seed gives none."""
    low, high = value["low"], value["high"]
    return () if low is None or high is None else (low, high)


def estimate(value: Interval, write: Write = percent) -> str:
    """Return mean and half the width of its 95 % interval, in percent; the mean alone where there is no interval.

    >>> estimate({"mean": 0.7, "low": 0.69, "high": 0.71}) == f"70.0 {PLUS_MINUS} 1.0"
    True
    """
    half = ""
    if interval := bounds(value):
        low, high = interval
        half = f" {PLUS_MINUS} {percent((high - low) / 2)}"
    return write(value["mean"]) + half


def mean_and_bounds(value: Interval, write: Write) -> list[str]:
    """Return mean, low and high end as the cells of a table, with dashes where there is no interval."""
    return [write(value["mean"]), *(map(write, bounds(value)) if bounds(value) else (DASH, DASH))]


def p_value(p: float) -> str:
    """Return the p of a test, never as zero.

    >>> p_value(0.9137), p_value(0.0607), p_value(1e-9)
    ('p = 0.91', 'p = 0.061', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def bare_p(p: float) -> str:
    """Return the p of a test for a column of them.

    >>> bare_p(0.0607), bare_p(1e-9)
    ('0.061', '< 0.001')
    """
    return p_value(p).removeprefix("p ").removeprefix("= ")


def interval_and_p(difference: PairedDifference) -> str:
    """Return the interval of a difference in points, and the p of its test where there is one."""
    p = "" if difference["p"] is None else f", {p_value(difference['p'])}"
    return " to ".join(map(points, bounds(difference))) + p


def count(value: float) -> str:
    """Return a whole number as text.

    >>> count(31280) == "31" + THIN_SPACE + "280"
    True
    """
    return f"{round(value):,}".replace(",", THIN_SPACE).replace("-", MINUS)


def decimals_for(near: float) -> int:
    """Return how many decimals give a number three digits.

    >>> [decimals_for(number) for number in (153.0, 31.1, 0.32, 0.0181, 0)]
    [0, 1, 3, 4, 3]
    """
    return max(0, 2 - math.floor(math.log10(abs(near)))) if near else 3


def plain(value: float) -> str:
    """Return a number as short as it can be, for epochs.

    >>> plain(1.5), plain(12.0)
    ('1.5', '12')
    """
    return count(value) if value == round(value) else f"{value:.3g}".replace("-", MINUS)


def tick(value: float) -> str:
    """Return a round number on an axis, with all its digits.

    >>> tick(1.5885), tick(2.0)
    ('1.5885', '2')
    """
    return count(value) if value == round(value) else f"{value:.10g}".replace("-", MINUS)


def percent_tick(part: float, signed: bool = False) -> str:
    """Return a part of one in percent, as short as it can be.

    >>> percent_tick(0.05, signed=True)
    '+5'
    """
    return ("+" if signed and part > 0 else "") + tick(round(100 * part, 6))


def ratio(value: float) -> str:
    """Return a ratio as text: how many times as much.

    >>> ratio(2)
    '2.0'
    """
    return f"{value:.1f}" if value >= 0.095 else f"{value:.2g}"


def plural(number: float, noun: str) -> str:
    """Return a number of things, with the noun in the plural where it is not one.

    >>> plural(1, "seed"), plural(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{plain(number)} {noun}{'' if number == 1 else 's'}"


def value_range(values: Sequence[float], write: Write = plain) -> str:
    """Return the value that all share, or the lowest and the highest.

    >>> value_range([2, 2]), value_range([3, 1, 2])
    ('2', '1 to 3')
    """
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def join_words(words: Sequence[str]) -> str:
    """Return words as a sentence lists them.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def amount(value: float, unit: str) -> str:
    """Return a large number of something, in thousands of thousands.

    >>> amount(2_340_000_000, "B"), amount(999, "FLOP"), amount(44_650, "")
    ('2.34 GB', '999 FLOP', '44.6 k')
    """
    size, prefix = next(((10.0**n, p) for n, p in _PREFIXES if value >= 10**n), (1.0, ""))
    return f"{value / size:.{4 if value / size >= 999.5 else 3}g} {prefix}{unit}".strip()


_PREFIXES = ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"))


def duration(seconds: float) -> str:
    """Return a time as one would say it.

    >>> duration(0.0123), duration(42.3), duration(754), duration(11_520), duration(200_000)
    ('12.3 ms', '42 s', '13 min', '3 h 12 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
