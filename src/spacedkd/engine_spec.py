"""Where a run is computed."""

from dataclasses import dataclass
from typing import Literal

from spacedkd.errors import UserError, check_between, unknown
from spacedkd.json_form import check_fields

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


@dataclass(frozen=True)
class EngineSpec:
    """Where a run is computed. Not a part of its identity: it does not decide what is computed."""

    accelerator: str = "auto"
    """cpu, cuda, mps or auto"""
    devices: int = 1
    """GPUs (or CPU processes) to share each batch"""
    nodes: int = 1
    """machines to share each batch"""
    workers: int = 0
    """processes that prepare batches ahead of time; the batches are the same for any number"""
    threads: int | None = None
    """CPU threads of each process; None takes all cores"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """how devices share a network: each has all of it (ddp), or a part of its weights (fsdp) where it does not fit"""
    compile: bool = False
    """let torch compile the networks, which takes minutes once and makes steps faster on most GPUs"""
    pipeline: bool = False
    """teacher and student learn at the same time, in two processes with a device each"""
    keep_path: bool = False
    """keep what is recorded of teachers that arms share, or that --pipeline hands over"""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.accelerator not in ACCELERATORS:
            raise unknown("accelerator", self.accelerator, ACCELERATORS)
        for name, value in (("devices", self.devices), ("nodes", self.nodes), ("threads", self.threads or 1)):
            check_between(name, value, 1, 4096)
        check_between("workers", self.workers, 0, 4096)
        if self.threads == 0:
            raise UserError("threads must be at least 1, got 0. Leave it out to use all cores.")
        if self.strategy == "fsdp" and self.processes == 1:
            raise UserError("strategy fsdp shares the weights among several devices: give --devices too.")
        if self.strategy == "fsdp" and self.compile:
            raise UserError("compile wants whole networks, which strategy fsdp does not keep: leave one of them out.")

    @property
    def processes(self) -> int:
        return self.devices * self.nodes
