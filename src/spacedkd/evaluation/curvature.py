"""Curvature of the loss around a network: trace and largest eigenvalue of the Hessian on training images.

Small curvature is what is called a flat minimum. `evaluation.hessian` has the estimators, which never write the Hessian
out and stop at a relative standard error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.instrument import (
    Entry,
    Headline,
    Instrument,
    Metric,
    ResultTable,
    check_at_least,
    loss_metric,
    training_images,
)
from spacedkd.runs.schema import PositiveCount
from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from spacedkd.evaluation.subject import Subject

MOST_PRODUCTS = 50
IMAGES = 250
"""fewer than for noise: a product with the Hessian takes as long as five passes or more, and a trace needs dozens"""


class TraceEntry(TypedDict):
    """An estimate of the trace that comparisons use."""

    method: str
    value: float
    standard_error: float
    stopped: str


class EigenvalueEntry(TypedDict):
    """The largest eigenvalue that was found."""

    value: float


class CurvatureEntry(Entry):
    """The entry of the curvature in evaluation.json; `traces` has all estimates, for the terminal."""

    images: PositiveCount
    error: float
    batchnorm: str
    trace: TraceEntry
    largest: EigenvalueEntry


@dataclass(frozen=True)
class Curvature(Instrument):
    """Trace and largest eigenvalue of the Hessian of the mean loss over training images, in float32."""

    name = "curvature"
    flag = "hessian"
    about = "trace and largest eigenvalue of the Hessian on training images: minutes for a small network"
    title = "Curvature"
    entry_type = CurvatureEntry
    headlines = (Headline("trace", "trace"), Headline("largest"))

    error: float = 0.05
    """stop when the trace has this relative standard error"""
    products: int = MOST_PRODUCTS
    """maximum number of Hessian-vector products for each estimate"""
    train_images: int | None = None
    """maximum number of training images; None takes 250"""

    def __post_init__(self) -> None:
        check_at_least(self, train_images=1, products=8)
        if not 0 < self.error < 1:
            raise UserError(f"error must be a part between 0 and 1, for instance 0.05; got {self.error:g}.")

    def check_subject(self, subject: Subject) -> None:
        """Refuse inputs that are no single tensor, and fewer images than classes."""
        subject.training_batches(self.train_images, IMAGES)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Return all estimates of the trace, the one that is used, and the largest eigenvalue."""
        from spacedkd.evaluation.hessian import USED, measure_curvature

        most = self.products * (len(USED) + 1)
        with subject.progress("curvature (at most)", most) as advance:
            result = measure_curvature(
                subject.networks.student_in_float32(),
                subject.training_batches(self.train_images, IMAGES),
                error=self.error,
                most_products=self.products,
                advance=advance,
            )
            advance(most - result.largest.products - sum(trace.products for trace in result.traces.values()))
        return {**to_json(result), "trace": to_json(result.trace)}

    @classmethod
    def metrics(cls, entry: CurvatureEntry) -> Iterator[tuple[str, Metric]]:
        """Yield the trace and the largest eigenvalue."""
        settings = f"{training_images(entry)}, {entry['batchnorm']}"
        yield "trace", loss_metric("Hessian trace", entry["trace"]["value"], settings)
        yield "largest", loss_metric("Largest eigenvalue", entry["largest"]["value"], settings)

    @classmethod
    def describe(cls, entries: Sequence[CurvatureEntry]) -> str:
        """Return which loss was differentiated, and how sure the traces of all runs are."""
        first = entries[0]
        comparable = [entry for entry in entries if entry["images"] == first["images"]]
        traces = [entry["trace"] for entry in comparable]
        errors = [trace["standard_error"] / abs(trace["value"] or 1) for trace in traces]
        goal = " or ".join(f"{100 * error:g}" for error in sorted({entry["error"] for entry in comparable}))
        missed = sum(trace["stopped"] == "most products" for trace in traces)
        short = f", which {missed} of {len(traces)} runs did not reach" if missed else ""
        return (
            f"Hessian of the mean cross-entropy of {training_images(first)}, as they are; trace by "
            f"{first['trace']['method']}; BatchNorm: {first['batchnorm']}. Standard errors of the traces were "
            f"{100 * min(errors):.1f} to {100 * max(errors):.1f} %; asked for were at most {goal} %{short}."
        )

    @classmethod
    def tables(cls, entry: Any, detailed: bool) -> Iterator[ResultTable]:
        """Yield a row for each estimate, with its error and what stopped it."""
        largest = entry["largest"]
        estimates = [
            (f"trace, {trace['method']}", trace, trace["standard_error"]) for trace in entry["traces"].values()
        ]
        estimates.append(("largest eigenvalue", largest, largest["residual"]))
        rows = [
            [name, f"{each['value']:.4g}", f"{error:.2g}", str(each["products"]), each["stopped"]]
            for name, each, error in estimates
        ]
        yield ResultTable(
            f"curvature, {training_images(entry)}",
            ("what", "value", "error", "products", "stopped"),
            rows,
            f"standard error of a trace, residual of the eigenvalue; BatchNorm: {entry['batchnorm']}",
        )
