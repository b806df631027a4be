"""Sentences about a reproduced table, which its page, its Markdown and its LaTeX share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from spacedkd.reporting.formatting import DASH, MINUS, PLUS_MINUS, count, duration, join_words, plural, value_range

if TYPE_CHECKING:
    from spacedkd.paper.results import CellResult, FitResult, Results, VerdictCounts
    from spacedkd.paper.verdict import Fit

Word = Literal["agrees", "disagrees", "smaller than the paper's", "cannot tell"]
SMALLER: Word = "smaller than the paper's"
VERDICTS: tuple[Word, ...] = ("agrees", "disagrees", SMALLER, "cannot tell")
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


def tally(verdict: "Mapping[Word, int] | VerdictCounts") -> str:
    """Return how many effects have each verdict; smaller ones are counted where there are some.

    >>> tally({"agrees": 3, "disagrees": 0, "smaller than the paper's": 2, "cannot tell": 1})
    "3 agree, 0 disagree, 2 smaller than the paper's, 1 cannot tell"
    >>> tally({"agrees": 1, "disagrees": 2, "smaller than the paper's": 0, "cannot tell": 0})
    '1 agrees, 2 disagree, 0 cannot tell'
    """
    plurals = {"agrees": "agree", "disagrees": "disagree"}
    words = [word for word in VERDICTS if verdict[word] or word != SMALLER]
    return ", ".join(f"{verdict[word]} {plurals.get(word, word) if verdict[word] != 1 else word}" for word in words)


def seeds(results: "Results") -> str:
    """Return the number of seeds of the means, which may differ while runs are not finished."""
    numbers = [cell["estimate"]["n"] for cell in results["cells"] if cell["estimate"]]
    if not numbers:
        return "no finished seed"
    return f"{value_range(numbers)} {'seed' if max(numbers) == 1 else 'seeds'}"


def averaged(results: "Results") -> str:
    """Return what the numbers of a cell are: a mean, and half of its interval where several seeds give one."""
    several = any(cell["estimate"]["n"] > 1 for cell in results["cells"] if cell["estimate"])
    return f"mean over {seeds(results)}" + (" ± half of the 95 % interval" if several else "")


def scale(results: "Results") -> str:
    """Return the scale and what it is about."""
    return f"scale {results['scale']['name']}: {results['scale']['about']}"


def capital(sentence: str) -> str:
    """Return a sentence that begins with a capital letter."""
    return sentence[0].upper() + sentence[1:]


def few_seeds(results: "Results") -> str | None:
    """Return what so few seeds cannot show, whatever their numbers are; None where they are enough."""
    cells = (*results["cells"], *results["contrasts"])
    numbers = [cell["difference"]["n"] for cell in cells if cell["difference"]]
    if not numbers or min(numbers) >= results["fewest_seeds"]:
        return None
    fewest = min(numbers)
    if fewest == 1:
        limit = "Where one seed alone is finished there is no interval and no test"
    else:
        limit = (
            f"With {fewest} seeds the exact test has {2**fewest} outcomes and its p is {2 / 2**fewest:g} at the least"
        )
    return f"{limit}: fewer than {results['fewest_seeds']} seeds can never reach p < 0.05 exactly."


def unfinished(results: "Results") -> str | None:
    """Return how many runs are not finished; None where all are."""
    number = results.get("missing")
    if not number:
        return None
    are = "is" if number == 1 else "are"
    return f"{plural(number, 'run')} {are} not finished: cells without them are empty, or of fewer seeds."


def cost(results: "Results") -> str | None:
    """Return the cost of all runs, paused or not; None where there are none, as for a claim that is a theorem."""
    of = results.get("cost")
    if not of:
        return None
    shared = f", {count(of['shared'])} of them from a teacher that another run had trained" if of["shared"] else ""
    runs = f"{plural(of['runs'], 'run')}{shared}; {duration(3600 * of['hours'])} by the clock"
    return f"{runs}, {count(of['updates'])} optimizer updates." if of.get("updates") is not None else f"{runs}."


def provenance(results: "Results") -> str:
    """Return when, where and with what a table was made."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    if not results["cells"]:  # a claim that is a theorem
        return f"Made on {results['date']}. Machine: {results['machine']}. Versions: {versions}."
    finished = sorted({int(seed) for cell in results["cells"] for seed in cell["values"]})
    which = "seeds" if len(finished) > 1 else "seed"
    seeds = f"{which} {join_words([str(seed) for seed in finished])}" if finished else "no finished seed"
    return (
        f"Made on {results['date']} with the {results['recipe']} recipe, {seeds}, at the {scale(results)}. "
        f"Machine: {results['machine']}. Versions: {versions}."
    )


def metrics(results: "Results") -> dict[str, str]:
    """Return the titles of the metrics that every cell has, the main one first."""
    return {results["metric"]["name"]: results["metric"]["title"], **results["also"]}


def measured(results: "Results") -> str:
    """Return what our numbers are: the title of the main metric, and of others that single rows have."""
    title, names = str(results["metric"]["title"]), metrics(results)
    others = {cell["metric"] for cell in results["cells"]} - {results["metric"]["name"]}
    if others <= {*names}:
        return "; where a row says so, ".join([title, *(names[name] for name in names if name in others)])
    return f"{title} (the first cell; the others likewise, as rows and columns say)"


def metric_of(results: "Results", cell: "CellResult") -> str:
    """Return the title of a cell's metric."""
    return metrics(results).get(cell["metric"]) or str(cell["metric"])


def optimum(fit: "FitResult") -> str:
    """Return where a fitted parabola has its highest point, and whether that is the paper's."""
    shape = "opens upwards" if fit["opens"] == "up" else "is a straight line"
    sentence = f"the fitted parabola {shape} and has no optimum"
    if has_optimum(fit):
        interval = "" if fit["low"] is None else f" (95 % interval {fit['low']:.2f} to {fit['high']:.2f})"
        at_the_end = ", the end of what was measured" if fit["optimum"] in fit["within"] else ""
        sentence = f"fit: best at {fit['optimum']:.2f}{at_the_end}{interval}"
    if fit["paper"] is not None and has_optimum(fit["paper"]):
        sentence += f", the paper's at {fit['paper']['optimum']:.2f}"
    return f"{sentence}; {fit['verdict']}: {fit['why']}" if fit["verdict"] else sentence


def has_optimum(fit: "Fit") -> bool:
    """Return whether a fitted parabola opens downward, so that its vertex is the best value."""
    return fit["opens"] == "down"


def overall(every: "Sequence[Results]") -> str:
    """Return the verdicts over all tables in one sentence."""
    if not every:
        return "Nothing has been run yet."
    total = {word: sum(results["verdict"][word] for results in every) for word in VERDICTS}
    tables = f"{len(every)} of the paper's tables and figures"
    if not any(total.values()):
        return f"{tables}. No effect is judged."
    return f"{tables}, {plural(sum(total.values()), 'effect')} compared: {tally(total)}."


def scales(every: "Sequence[Results]") -> list[str]:
    """Return a sentence for each scale of the tables."""
    return [*dict.fromkeys(f"{capital(scale(results))}." for results in every)]


def scale_and_seeds(results: "Results") -> str:
    """Return the scale of a table, and its seeds where it has cells."""
    return ", ".join([f"scale {results['scale']['name']}", *([seeds(results)] if results["cells"] else [])])


SUMMARIES = (
    "What the text states about all differences at once, what the printed differences give, and ours. The first two "
    "are the paper's own numbers and need no runs. Ours are of the finished rows alone, beside the printed "
    "differences of the same rows: the average paired by seed, with its 95 % interval; an extreme with the interval "
    "of its own row."
)


SUMMARY_HEADS = ("", "stated", "printed differences", "of them, finished here", "ours", "verdict")


class Part(NamedTuple):
    """A number of a summary and the row it is of, or a verdict and its reason."""

    text: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.of})" if self.of else self.text


def summary_lines(results: "Results") -> list[list[Part]]:
    """Return a line for each summary: statement, stated, printed, printed of the finished rows, ours, verdict."""
    lines = []
    for summary in results.get("summaries", ()):
        ours, printed_finished = Part("not finished"), Part(DASH)
        estimate = summary["ours"]
        if estimate is not None and summary["printed_finished"] is not None:
            half = ""
            if estimate["low"] is not None and estimate["high"] is not None:
                half = f" {PLUS_MINUS} {50 * (estimate['high'] - estimate['low']):.2f}"
            ours = Part(_points(100 * estimate["mean"]) + half, summary["our_row"] or "")
            rows = f"{summary['finished']} of {plural(summary['rows'], 'row')}"
            printed_finished = Part(_points(summary["printed_finished"]), rows)
        printed = Part(_points(summary["printed"]), summary["printed_row"] or "")
        judged = Part(summary["verdict"] or DASH, summary["why"])
        stated = Part(_points(summary["stated"]))
        lines.append([Part(summary["statement"]), stated, printed, printed_finished, ours, judged])
    return lines


def _points(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)
