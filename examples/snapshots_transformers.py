"""Spaced KD with Hugging Face's Trainer: a teacher's run leaves snapshots, a student's run reads them.

Which part of Python's own documentation does a sentence come from? Stop it, and it resumes.
Run it with: python examples/snapshots_transformers.py FOLDER
"""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spacedkd import Spacing
from spacedkd.integrations.transformers import StudentTrainer

# isort: split
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # after spacedkd, which
from transformers.trainer_utils import EvalPrediction, get_last_checkpoint  # lets torchvision be imported

PARTS = ("compound", "debugger", "string-methods", "formatstrings")
sentences = [(part, one) for part, name in enumerate(PARTS) for one in re.split(r"(?<=[.:])\s+", topics[name])]
texts = [(part, words[:32]) for part, one in sentences if len(words := re.findall("[a-z]+", one.lower())) > 4]
vocabulary = {word: number for number, word in enumerate(sorted({word for _, words in texts for word in words}), 1)}
items = [{"input_ids": torch.tensor([vocabulary[word] for word in words]), "labels": part} for part, words in texts]
train, test = [item for place, item in enumerate(items) if place % 4], items[::4]
STEPS = 10 * -(-len(train) // 32)  # ten epochs, of 22 steps with Python 3.11; newer ones have more to say


def padded(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = pad_sequence([item["input_ids"] for item in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": ids.sign(), "labels": torch.tensor([item["labels"] for item in batch])}


def network() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {"vocab_size": len(vocabulary) + 1, "max_position_embeddings": 32}
    return BertForSequenceClassification(BertConfig(num_labels=len(PARTS), **sizes, **words))


def accuracy(found: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def fit(kind: type[Trainer], folder: Path, callbacks: list[Any], **options: Any) -> float:
    """Train to the end, from the last checkpoint if there is one; gives the accuracy on the test sentences."""
    settings = TrainingArguments(
        output_dir=str(folder),
        data_seed=0,  # the same order in both runs; dropout need not be the same, and is the student's own
        max_steps=STEPS,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        save_steps=50,
        save_total_limit=1,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )
    data = {"train_dataset": train, "eval_dataset": test, "data_collator": padded, "compute_metrics": accuracy}
    trainer = kind(network(), settings, callbacks=callbacks, **data, **options)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)
    return float(trainer.evaluate()["eval_accuracy"])


def main(folder: Path, *more: Any) -> dict[str, float]:
    spacing = Spacing(folder / "snapshots", every="1.5ep")
    alone = fit(Trainer, folder / "teacher", [spacing.transformers.teacher(), *more])
    teacher, callbacks = spacing.teacher(network), [spacing.transformers.student(), *more]
    return {"teacher": alone, "student": fit(StudentTrainer, folder / "student", callbacks, teacher=teacher)}


if __name__ == "__main__":
    for role, share in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * share:.1f} % of {len(test)} test sentences, last step, one seed")
