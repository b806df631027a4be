"""Spaced KD on text: which part of Python's own documentation does a sentence come from?

Run it with: python examples/text_classifier.py FOLDER
"""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from spacedkd import MethodSpec, OptimizerSpec, Run, RunSpec, Spaced, train

PARTS = ("compound", "debugger", "string-methods", "formatstrings")
WORDS = 2000


def sentences(part: str) -> list[Tensor]:
    """Sentences as numbers of their words; a word's number is its place among the hashes."""
    text = re.split(r"(?<=[.:])\s+", topics[part])
    found = [re.findall(r"[a-z]+", sentence.lower()) for sentence in text]
    return [torch.tensor([number(word) for word in words]) for words in found if len(words) > 4]


def number(word: str) -> int:
    """From 1 on; 0 fills up shorter sentences."""
    return 1 + sum(ord(letter) * 31**place for place, letter in enumerate(word)) % (WORDS - 1)  # type: ignore[no-any-return]


def items(training: bool) -> list[dict[str, Any]]:
    every = [(tokens, label) for label, part in enumerate(PARTS) for tokens in sentences(part)]
    return [{"tokens": t, "label": y} for place, (t, y) in enumerate(every) if (place % 4 > 0) == training]


def padded(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    tokens = pad_sequence([item["tokens"] for item in batch], batch_first=True)
    return {"tokens": tokens, "labels": torch.tensor([item["label"] for item in batch])}


class Reader(nn.Module):
    """The mean of a sentence's word vectors, a hidden layer, and a classifier."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, len(PARTS))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # [B, L] -> logits [B, C], features [B, D]
        mean = self.words(tokens).sum(1) / (tokens > 0).sum(1, keepdim=True)
        features = self.hidden(mean)
        return self.head(features), features


def main(folder: Path, epochs: float = 15) -> Run:
    spec = RunSpec(
        method=MethodSpec("kd", {"temperature": 2.0}),
        schedule=Spaced("1.5ep"),
        epochs=epochs,
        batch_size=32,
        optimizer=OptimizerSpec("adamw", lr=3e-3),
    )
    return train(spec, folder, network=Reader, data=(items(True), items(False)), collate=padded)


if __name__ == "__main__":
    run = main(Path(sys.argv[1]))
    print(f"student: {100 * run.accuracy:.1f} % of {run.plan['test_images']} sentences, last epoch, one seed")
