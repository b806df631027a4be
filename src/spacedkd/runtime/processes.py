"""The processes of a distributed run: the rank of this one, as torchrun, SLURM or the first process set it."""

import multiprocessing
import os
import sys
from contextlib import suppress

from spacedkd.runtime.errors import UserError, printable


def rank() -> int:
    """Return the number of this process among those of a run, on all machines; rank 0 writes and prints."""
    if "RANK" in os.environ:  # torchrun's
        return int(os.environ["RANK"])
    if _by_srun():
        return int(os.environ["SLURM_PROCID"])
    return int(os.environ.get("LOCAL_RANK", "0")) + 1000 * int(os.environ.get("NODE_RANK", "0"))


def check_processes(devices: int, nodes: int) -> None:
    """Refuse to train with another number of processes than torchrun or srun has started."""
    wanted = devices * nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        starter, started = "torchrun", int(os.environ["WORLD_SIZE"])
    elif _by_srun():
        starter, started = "srun", int(os.environ["SLURM_NTASKS"])
    elif _in_slurm() and int(os.environ["SLURM_NTASKS"]) > 1:
        raise UserError("This SLURM job has several tasks, but srun did not start them: write srun before the command.")
    else:
        if nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= os.environ.keys():
            raise UserError(
                f"--nodes {nodes} needs this command on each machine, started by torchrun or srun: see docs/scale.md. "
                "On this machine alone leave out --nodes."
            )
        return
    if started != wanted:
        raise UserError(
            f"{starter} has started {started} process{'es' * (started > 1)}, and the run is for {wanted} (--devices "
            f"{devices} on --nodes {nodes}): make them equal. Runs apart from each other are started one by one."
        )
    if starter == "srun":
        for expected, flag, variable in (
            (devices, "devices", "SLURM_NTASKS_PER_NODE"),
            (nodes, "nodes", "SLURM_NNODES"),
        ):
            actual = os.environ.get(variable, str(expected))
            if actual != str(expected):
                raise UserError(
                    f"SLURM gives this job {variable}={actual}, and the run has --{flag} {expected}: make them equal."
                )
        if started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise UserError(f"Ask SLURM for tasks with --ntasks-per-node={devices}, not with --ntasks.")


def speaks() -> bool:
    """Return whether this is the first of a run's processes on its machine."""
    return os.environ.get("SLURM_LOCALID" if _by_srun() else "LOCAL_RANK", "0") == "0"


def _in_slurm() -> bool:
    # In an interactive job commands are typed by hand, and Fabric starts the processes, as outside of SLURM.
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def _by_srun() -> bool:
    """Return whether srun started this process; a batch script has the same variables, except for the step."""
    return _in_slurm() and "SLURM_STEP_ID" in os.environ


def print_notice(line: str) -> None:
    """Print a line to stderr; only the first process of a run prints it, and none of its worker processes."""
    if rank() == 0 and multiprocessing.parent_process() is None:
        with suppress(OSError):  # the terminal was closed: the run continues without it
            print(printable(line), file=sys.stderr, flush=True)
