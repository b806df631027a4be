"""Runs on two processes of this machine; many of them for one start, because starting is what takes time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_fabric.plugins.environments.lightning import find_free_network_port

from spacedkd import RunSpec, read_spec, train
from spacedkd.config.serialization import to_json
from spacedkd.runs.folder import RunFolder
from tests import forked

Process = subprocess.Popen[str] | forked.Command
LIMIT = 300
"""seconds after which two processes are taken to wait for each other"""


def on_two(spec: RunSpec, **engine: Any) -> RunSpec:
    return replace(spec, engine=replace(spec.engine, accelerator="cpu", devices=2, **engine))


def started(words: Iterable[str], ranks: Mapping[int, Mapping[str, str]], fork: bool = True) -> list[Process]:
    """Python with these words, once for each rank, with its environment variables; forked, or as from a shell."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "TORCHELASTIC"))}
    common = {**kept, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
    if fork:
        return [forked.Command(*words, env=common | dict(own)) for own in ranks.values()]
    command = [sys.executable, *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env=common | dict(own), **pipes) for own in ranks.values()]


def finished(processes: Iterable[Process]) -> list[tuple[int, str, str]]:
    """Code, output and errors of each."""
    found = []
    for process in processes:
        out, errors = process.communicate(timeout=LIMIT)
        found.append((process.wait(), out, errors))
    return found


def torchrun_variables(ranks: int = 2) -> dict[int, dict[str, str]]:
    """What torchrun sets for each of its processes."""
    shared = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return {rank: {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"} for rank in range(ranks)}


def slurm_variables(ranks: int = 2) -> dict[int, dict[str, str]]:
    """What srun sets for each of the tasks of `srun --nodes 1 --ntasks-per-node 2`."""
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "SLURM_NODELIST": "localhost"}
    shared = {**job, "SLURM_NNODES": "1", "SLURM_NTASKS": str(ranks), "SLURM_NTASKS_PER_NODE": str(ranks)}
    own = ("SLURM_PROCID", "SLURM_LOCALID")
    return {rank: {**shared, "SLURM_NODEID": "0", **dict.fromkeys(own, str(rank))} for rank in range(ranks)}


def train_on_two(specs: Mapping[str, RunSpec], folder: Path) -> None:
    """Train all of them, in one start of two processes; counts.json says what DDP was asked for in each."""
    for name, spec in specs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "asked.json").write_text(json.dumps(to_json(spec)))
    words = ["-m", "tests.training.two_processes", str(folder), *specs]
    for code, _, errors in finished(started(words, torchrun_variables())):
        assert code == 0, errors
        assert "deprecated" not in errors


def main(folder: Path, names: Iterable[str]) -> None:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from spacedkd.training import device
    from spacedkd.training import distributed as sharding

    torch.set_num_threads(1)
    device.BACKEND = "eager"  # which needs no C++ compiler
    counts: Counter[str] = Counter()

    def counted(what: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            counts[f"{what} without gradients"] += not torch.is_grad_enabled()
            return function(*args, **kwargs)

        return call

    for what, owner, name in (
        ("forward", DistributedDataParallel, "forward"),
        ("broadcast by DDP", DistributedDataParallel, "_sync_buffers"),
        ("broadcast", distributed, "broadcast"),
        ("spread modules", sharding, "fully_shard"),
    ):
        setattr(owner, name, counted(what, getattr(owner, name)))
    found = {}
    for name in names:
        counts.clear()
        spec, run = read_spec(folder / name / "asked.json"), RunFolder(folder / name / "run")
        begun = run.spec.exists()
        train(run.spec_to_resume(spec) if begun else spec, run.path, if_exists="resume")
        found[name] = dict(counts)
    if distributed.get_rank() == 0:
        (folder / "counts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
