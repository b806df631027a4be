"""Memory and time of the losses of a causal language model: token_kl beside the plain way and cross-entropy alone.

    python -m benchmarks.token_loss_memory --out token_loss_memory.json

Every way computes a loss of logits [B, L, V] and its gradient. Its peak is the largest sum of all tensors that exist at
one time, student's and teacher's logits included, as a multiple of one tensor of logits in float32: counted by torch's
profiler on a CPU, by the allocator on a GPU. Ways take turns, and times are those of each one's fastest turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import fastest
from spacedkd import losses
from spacedkd.runtime.files import write_json

TEMPERATURE, SHARE = 2.0, 0.5


def peak_bytes(action: Callable[[], object]) -> int:
    """Return the most bytes of tensors that an action holds at one time, besides those that were there before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    held = most = 0
    results: Any = profiled.profiler
    changes = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def plain(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return the loss as it is usually written: the tokens that count in float32, then cross-entropy and KL."""
    kept = labels[:, 1:] != losses.IGNORED
    z, y = student[:, :-1][kept].float(), labels[:, 1:][kept]
    t = teacher[:, :-1][kept].float()
    kl = F.kl_div((z / TEMPERATURE).log_softmax(1), (t / TEMPERATURE).softmax(1), reduction="batchmean")
    return (1 - SHARE) * F.cross_entropy(z, y) + SHARE * kl


def plain_kl(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return the KL alone in the same way."""
    kept = labels[:, 1:] != losses.IGNORED
    z, t = (logits[:, :-1][kept].float() / TEMPERATURE for logits in (student, teacher))
    return F.kl_div(z.log_softmax(1), t.softmax(1), reduction="batchmean")


def cross_entropy(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy alone, which has no teacher."""
    z, y = student.float().flatten(0, 1), F.pad(labels[:, 1:], (0, 1), value=losses.IGNORED).flatten()
    return F.cross_entropy(z, y)


def ways(chunk: int) -> Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return all ways by name."""
    token_kl = partial(losses.token_kl, temperature=TEMPERATURE, chunk=chunk)

    def both(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        label = losses.token_cross_entropy(student, labels, chunk=chunk)
        return (1 - SHARE) * label + SHARE * token_kl(student, teacher, labels)

    return {
        "cross-entropy alone": cross_entropy,
        "plain KL": plain_kl,
        "token_kl": token_kl,
        "token_kl, reverse": partial(token_kl, direction="reverse"),
        "token_kl, jsd": partial(token_kl, direction="jsd"),
        "plain cross-entropy and KL": plain,
        "token_cross_entropy and token_kl": both,
    }


def measure(shape: Sequence[int], dtype: torch.dtype, chunk: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return peak and seconds of each way on random logits of this shape."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    labels = torch.randint(0, shape[-1], shape[:-1], device=device)
    student, teacher = (torch.randn(*shape, device=device).to(dtype) for _ in range(2))
    student.requires_grad_()
    unit = 4 * student.numel()

    def learn(way: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        student.grad = None
        way(student, teacher, labels).backward()
        if device == "cuda":
            torch.cuda.synchronize()

    actions = {name: partial(learn, way) for name, way in ways(chunk).items()}
    table = {}
    for (name, action), seconds in zip(actions.items(), fastest(*actions.values(), repeats=rounds), strict=True):
        student.grad = None  # it would count as memory that was there before
        inputs = student.nbytes * (1 if name == "cross-entropy alone" else 2)
        table[name] = {"peak": (inputs + peak_bytes(action)) / unit, "seconds": seconds}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--chunk", type=int, default=128)
    typed = parser.parse_args()
    shape = (typed.batch, typed.length, typed.vocabulary)
    rows = {
        str(dtype).removeprefix("torch."): measure(shape, dtype, typed.chunk, typed.rounds)
        for dtype in (torch.float32, torch.bfloat16)
    }
    report(rows)
    if typed.out is not None:
        write_json(typed.out, {"shape": [*shape], "chunk": typed.chunk, "ways": rows})


def report(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    print("| logits | loss and gradient | peak, float32 tensors of logits | time, of plain KL |")
    print("|---|---|---|---|")
    for dtype, table in rows.items():
        base = table["plain KL"]["seconds"]
        for name, row in table.items():
            print(f"| {dtype} | {name} | {row['peak']:.2f} | {row['seconds'] / base:.2f} |")


if __name__ == "__main__":
    main()
