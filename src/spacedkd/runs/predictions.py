"""Predictions of images as plain values, and pandas DataFrames of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


class ImagePrediction(NamedTuple):
    """The class that a network predicts for one image."""

    image: str
    """path of the file; the position of an image that has none"""
    label: str
    """name of the most probable class"""
    probability: float
    """probability of that class: the softmax of the logits, not calibrated"""
    top: Mapping[str, float]
    """the most probable classes with their probabilities, in descending order"""

    def row(self) -> dict[str, str | float]:
        """Return one row of a table; the second most probable class is in label2 and probability2, and so on.

        >>> ImagePrediction("a.png", "cat", 0.75, {"cat": 0.75, "dog": 0.25}).row()
        {'image': 'a.png', 'label': 'cat', 'probability': 0.75, 'label2': 'dog', 'probability2': 0.25}
        """
        row: dict[str, str | float] = {"image": self.image}
        for rank, (label, probability) in enumerate(self.top.items(), 1):
            suffix = "" if rank == 1 else str(rank)
            row |= {f"label{suffix}": label, f"probability{suffix}": probability}
        return row


class Predictions(list[ImagePrediction]):
    """A list of predictions in the order of the images."""

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with the row of each prediction."""
        return data_frame([prediction.row() for prediction in self])

    def _repr_html_(self) -> str:
        html: str = self.to_frame().to_html(index=False)
        return html


def data_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a pandas DataFrame of rows; refuse where pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise UserError("DataFrames need pandas, which is not installed: pip install pandas") from None
    return pandas.DataFrame(rows)
