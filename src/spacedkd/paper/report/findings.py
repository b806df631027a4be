"""What is said of a reproduced table: sentences that its page and its Markdown share."""

from collections.abc import Sequence
from typing import NamedTuple

from spacedkd.paper.report.cells import compared
from spacedkd.report.formatting import DASH, MINUS, PLUS_MINUS, Found, count, duration, join_words, plural, value_range

SMALLER = "smaller than the paper's"
VERDICTS = ("agrees", "disagrees", SMALLER, "cannot tell")
TESTS = (
    "Differences are paired by seed, over the seeds that both cells have, with the 95 % interval of Student's t, whose "
    "standard error is never less than that of counting whole images. p, paired t is its test; p, Holm is that p "
    "corrected for all judged differences of this table at once; p, sign-flip is, of all ways to swap the two cells "
    "within seeds, the share that differ at least as much: exact up to 16 seeds, drawn beyond. Detectable is the "
    "smallest difference that so many seeds, scattering as these do, would show with a power of 80 %."
)
BOLD = (
    "Bold is the best mean of a cell and those compared with it over the same seeds, where the paired 95 % interval of "
    "its difference to that cell leaves out zero; it need not be shown to be better than the others. Cells of other "
    "seeds are not compared for it."
)


def tally(verdict: Found) -> str:
    """How many cells there are of each verdict; smaller effects are counted where there are some.

    >>> tally({"agrees": 3, "disagrees": 0, "smaller than the paper's": 2, "cannot tell": 1})
    "3 agree, 0 disagree, 2 smaller than the paper's, 1 cannot tell"
    >>> tally({"agrees": 1, "disagrees": 2, "smaller than the paper's": 0, "cannot tell": 0})
    '1 agrees, 2 disagree, 0 cannot tell'
    """
    plurals = {"agrees": "agree", "disagrees": "disagree"}
    words = [word for word in VERDICTS if verdict[word] or word != SMALLER]
    return ", ".join(f"{verdict[word]} {plurals.get(word, word) if verdict[word] != 1 else word}" for word in words)


def seeds(found: Found) -> str:
    """Over how many seeds the means are, which may differ while runs are not finished."""
    numbers = [cell["estimate"]["n"] for cell in found["cells"] if cell["estimate"]]
    if not numbers:
        return "no finished seed"
    return f"{value_range(numbers)} {'seed' if max(numbers) == 1 else 'seeds'}"


def averaged(found: Found) -> str:
    """What a number and the one behind it are; one seed has no interval."""
    several = any(cell["estimate"]["n"] > 1 for cell in found["cells"] if cell["estimate"])
    return f"mean over {seeds(found)}" + (" ± half of the 95 % interval" if several else "")


def scale(found: Found) -> str:
    return f"scale {found['scale']['name']}: {found['scale']['about']}"


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def few_seeds(found: Found) -> str | None:
    """What so few seeds cannot show, whatever their numbers are; None where they are enough."""
    numbers = [cell["difference"]["n"] for cell in compared(found)]
    if not numbers or min(numbers) >= found["fewest_seeds"]:
        return None
    most = min(numbers)
    if most == 1:
        said = "Where one seed alone is finished there is no interval and no test"
    else:
        said = f"With {most} seeds the exact test has {2**most} outcomes and its p is {2 / 2**most:g} at the least"
    return f"{said}: fewer than {found['fewest_seeds']} seeds can never reach p < 0.05 exactly."


def unfinished(found: Found) -> str | None:
    number = found.get("missing")
    if not number:
        return None
    said = f"{plural(number, 'run')} {'is' if number == 1 else 'are'} not finished"
    return f"{said}: cells without them are empty, or of fewer seeds."


def cost(found: Found) -> str | None:
    """Of all runs, paused or not; None where there are none, as for a claim that is a theorem."""
    of = found.get("cost")
    if not of:
        return None
    shared = f", {count(of['shared'])} of them from a teacher that another run had trained" if of["shared"] else ""
    said = f"{plural(of['runs'], 'run')}{shared}; {duration(3600 * of['hours'])} by the clock"
    return f"{said}, {count(of['updates'])} optimizer updates." if of.get("updates") is not None else f"{said}."


def origin(found: Found) -> str:
    """When, where and with what it was made."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    if not found["cells"]:  # a claim that is a theorem
        return f"Made on {found['date']}. Machine: {found['machine']}. Versions: {versions}."
    finished = sorted({int(seed) for cell in found["cells"] for seed in cell["values"]})
    which = "seeds" if len(finished) > 1 else "seed"
    seeds = f"{which} {join_words([str(seed) for seed in finished])}" if finished else "no finished seed"
    return (
        f"Made on {found['date']} with the {found['recipe']} recipe, {seeds}, at the {scale(found)}. "
        f"Machine: {found['machine']}. Versions: {versions}."
    )


def metrics(found: Found) -> dict[str, str]:
    """What each metric that every cell has is called, the main one first."""
    return {found["metric"]["name"]: found["metric"]["title"], **found["also"]}


def measured(found: Found) -> str:
    """What our numbers are."""
    title, names = str(found["metric"]["title"]), metrics(found)
    others = {cell["metric"] for cell in found["cells"]} - {found["metric"]["name"]}
    if others <= {*names}:
        return "; where a row says so, ".join([title, *(names[one] for one in names if one in others)])
    return f"{title} (the first cell; the others likewise, as rows and columns say)"


def metric_of(found: Found, cell: Found) -> str:
    return metrics(found).get(cell["metric"]) or str(cell["metric"])


def optimum(fit: Found) -> str:
    """Where a fitted parabola has its highest point, and whether that is the paper's."""
    how = "opens upwards" if fit["opens"] == "up" else "is a straight line"
    said = f"the fitted parabola {how} and has no optimum"
    if has_optimum(fit):
        interval = "" if fit["low"] is None else f" (95 % interval {fit['low']:.2f} to {fit['high']:.2f})"
        at_the_end = ", the end of what was measured" if fit["optimum"] in fit["within"] else ""
        said = f"fit: best at {fit['optimum']:.2f}{at_the_end}{interval}"
    if fit["paper"] is not None and has_optimum(fit["paper"]):
        said += f", the paper's at {fit['paper']['optimum']:.2f}"
    return f"{said}; {fit['verdict']}: {fit['why']}" if fit["verdict"] else said


def has_optimum(fit: Found) -> bool:
    return bool(fit["opens"] == "down")


def overall(all_found: Sequence[Found]) -> str:
    """All tables in one breath."""
    if not all_found:
        return "Nothing has been run yet."
    total = {word: sum(found["verdict"][word] for found in all_found) for word in VERDICTS}
    tables = f"{len(all_found)} of the paper's tables and figures"
    if not any(total.values()):
        return f"{tables}. No effect is judged."
    return f"{tables}, {plural(sum(total.values()), 'effect')} compared: {tally(total)}."


SUMMARIES = (
    "What the text states about all differences at once, what the printed differences give, and ours. The first two "
    "are the paper's own numbers and need no runs. Ours are of the finished rows alone, beside the printed "
    "differences of the same rows: the average paired by seed, with its 95 % interval; an extreme with the interval "
    "of its own row."
)


class Told(NamedTuple):
    """A number of a summary, and what it is of, or a verdict and its reason."""

    text: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.of})" if self.of else self.text


def summary_lines(found: Found) -> list[list[Told]]:
    """Return a line for each summary: statement, stated, printed, printed of the finished rows, ours, verdict."""
    lines = []
    for one in found.get("summaries", ()):
        mine, theirs = Told("not finished"), Told(DASH)
        if one["ours"] is not None:
            low, high = one["ours"]["low"], one["ours"]["high"]
            half = "" if low is None else f" {PLUS_MINUS} {50 * (high - low):.2f}"
            mine = Told(_points(100 * one["ours"]["mean"]) + half, one["our_row"] or "")
            theirs = Told(_points(one["printed_finished"]), f"{one['finished']} of {plural(one['rows'], 'row')}")
        printed = Told(_points(one["printed"]), one["printed_row"] or "")
        judged = Told(one["verdict"] or DASH, one["why"])
        lines.append([Told(one["statement"]), Told(_points(one["stated"])), printed, theirs, mine, judged])
    return lines


def _points(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


SUMMARY_HEADS = ("", "stated", "printed differences", "of them, finished here", "ours", "verdict")
