"""Spaced KD of a language model from cached targets: a teacher is called once a batch, for any number of students.

A small GPT learns to spell Python's own documentation. Its first student writes the 8 likeliest of 64 characters at
every position, and the mass of the others; the students after it read them, and have no teacher in memory.
Run it with: python examples/cached_targets_lm.py FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Snapshots, SnapshotTeacher, Targets, losses, seeded_loader

# isort: split
from transformers import GPT2Config, GPT2LMHeadModel  # after spacedkd, which lets torchvision be imported

STEPS, INTERVAL, BATCH, LENGTH, CLASSES = 100, 20, 16, 32, 64
text = " ".join(topics[name] for name in ("compound", "debugger", "string-methods", "formatstrings")).lower()
characters = torch.tensor([ord(character) % CLASSES for character in text])
windows = characters[: len(characters) // LENGTH * LENGTH].view(-1, LENGTH)
train, test = TensorDataset(windows[64:]), windows[:64]


def network(width: int = 32) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": width, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "vocab_size": CLASSES}
    plain = {"bos_token_id": None, "eos_token_id": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **plain))


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    return losses.cross_entropy(logits[:, :-1], ids[:, 1:], dim=-1)


def fit(
    model: nn.Module,
    loss: Callable[[int, Tensor, Tensor], Tensor],
    after: Callable[[int, nn.Module], object] = lambda updates, model: None,
) -> float:
    """The loop you have already; gives the perplexity of the held-out text."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step, (ids,) in enumerate(seeded_loader(train, BATCH, seed=0, steps=range(STEPS))):
        optimizer.zero_grad()
        loss(step, ids, model(input_ids=ids).logits).backward()
        optimizer.step()
        after(step + 1, model)
    with torch.no_grad():
        return float(next_token(model.eval()(input_ids=test).logits, test).exp())


def main(folder: Path) -> dict[str, float]:
    snapshots = Snapshots(folder / "teacher", INTERVAL, total=STEPS)
    perplexity = {"teacher": fit(network(), lambda step, ids, z: next_token(z, ids), snapshots.after)}

    settings = {"teacher": "GPT of width 32", "interval": INTERVAL, "batch": BATCH, "seed": 0}
    targets = Targets(folder / "targets", "top-k:8", settings)
    teacher = SnapshotTeacher(folder / "teacher", INTERVAL, network, total=STEPS)
    with targets:  # the last steps are written when the block ends
        for weight in (0.3, 0.6):

            def distil(step: int, ids: Tensor, z: Tensor, weight: float = weight) -> Tensor:
                if step not in targets:  # in the first student's run alone
                    targets.write(step, teacher.seek(step)(input_ids=ids).logits)
                soft = losses.kl(z, targets.read(step)["logits"], temperature=1.0, dim=-1)
                return (1 - weight) * next_token(z, ids) + weight * soft

            perplexity[f"student, KD weight {weight}"] = fit(network(16), distil)
    return perplexity


if __name__ == "__main__":
    for name, value in main(Path(sys.argv[1])).items():
        print(f"{name}: perplexity {value:.2f}")
