"""How this process was started: alone, or as one of several of a run, by torchrun, by SLURM or by the first of them."""

import multiprocessing
import os
import sys
from contextlib import suppress

from spacedkd.runtime.errors import UserError, printable


def rank() -> int:
    """Which of a run's processes this is, over all machines; the first one, 0, speaks for all."""
    if "RANK" in os.environ:  # torchrun's
        return int(os.environ["RANK"])
    if _by_srun():
        return int(os.environ["SLURM_PROCID"])
    return int(os.environ.get("LOCAL_RANK", "0")) + 1000 * int(os.environ.get("NODE_RANK", "0"))


def check_processes(devices: int, nodes: int) -> None:
    """Refuse to train with another number of processes than torchrun or srun has started."""
    wanted = devices * nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        starter, found = "torchrun", int(os.environ["WORLD_SIZE"])
    elif _by_srun():
        starter, found = "srun", int(os.environ["SLURM_NTASKS"])
    elif _in_slurm() and int(os.environ["SLURM_NTASKS"]) > 1:
        raise UserError("This SLURM job has several tasks, but srun did not start them: write srun before the command.")
    else:
        if nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= os.environ.keys():
            raise UserError(
                f"--nodes {nodes} needs this command on each machine, started by torchrun or srun: see docs/scale.md. "
                "On this machine alone leave out --nodes."
            )
        return
    if found != wanted:
        raise UserError(
            f"{starter} has started {found} process{'es' * (found > 1)}, and the run is for {wanted} (--devices "
            f"{devices} on --nodes {nodes}): make them equal. Runs apart from each other are started one by one."
        )
    if starter == "srun":
        for asked, flag, variable in (
            (devices, "devices", "SLURM_NTASKS_PER_NODE"),
            (nodes, "nodes", "SLURM_NNODES"),
        ):
            there = os.environ.get(variable, str(asked))
            if there != str(asked):
                raise UserError(
                    f"SLURM gives this job {variable}={there}, and the run is for --{flag} {asked}: make them equal."
                )
        if found > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise UserError(f"Ask SLURM for tasks with --ntasks-per-node={devices}, not with --ntasks.")


def speaks() -> bool:
    """Whether this is the first of a run's processes on its machine."""
    return os.environ.get("SLURM_LOCALID" if _by_srun() else "LOCAL_RANK", "0") == "0"


def _in_slurm() -> bool:
    # With these names of jobs people type commands themselves, and Fabric starts processes as anywhere else.
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def _by_srun() -> bool:
    """A batch script has the same variables as what srun starts, except for the step."""
    return _in_slurm() and "SLURM_STEP_ID" in os.environ


def print_notice(line: str) -> None:
    """Print a line to stderr; only the first process of a run prints it, and none of its worker processes."""
    if rank() == 0 and multiprocessing.parent_process() is None:
        with suppress(OSError):  # the terminal was closed: the run continues without it
            print(printable(line), file=sys.stderr, flush=True)
