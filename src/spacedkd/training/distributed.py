"""Several processes that train one run: they start, stop and fail together, shard weights, and share BatchNorm.

Lightning Fabric starts them, and runs of one process too; all of it that training uses is imported here.

- `rendezvous_timeout` ends processes that wait in vain for the others to start.
- `watch_ranks` ends all ranks when one of them dies. A collective operation waits for all ranks, so each rank also has
  a connection to the first: the system closes those of a process that is killed, and the other ranks stop with an
  error. A rank that fails sends its error before it ends, so that the first rank can print it.
- `CollectiveStop` makes all ranks stop after the same turn.
- `fsdp_strategy` shards weights over devices (FSDP2).
- `broadcast_buffers` and `gather_rows` exchange BatchNorm's statistics and rows of a batch.
- `synchronize_batch_norm` normalises by the whole batch of all ranks.
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import ModuleType
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.runtime import processes as started
from spacedkd.runtime.errors import UserError, printable
from spacedkd.runtime.signals import Stop

# Lightning Fabric. To compare torchmetrics' version it imports torchmetrics, which imports transformers and
# scipy.signal if they are installed: two seconds in every process, for a number that is in the package's metadata.


@contextmanager
def _stub_module(package: str) -> Iterator[None]:
    """Let imports of a package find a stub with its `__version__` only, unless the package is imported already."""
    try:
        stub = ModuleType(package)
        stub.__version__ = version(package)  # type: ignore[attr-defined]
    except PackageNotFoundError:
        yield
        return
    module = sys.modules.setdefault(package, stub)
    try:
        yield
    finally:
        if module is stub:
            del sys.modules[package]


with _stub_module("torchmetrics"):
    from lightning_fabric import Fabric as Fabric
    from lightning_fabric.plugins.precision.amp import MixedPrecision as MixedPrecision
    from lightning_fabric.plugins.precision.double import DoublePrecision as DoublePrecision
    from lightning_fabric.strategies.ddp import DDPStrategy as DDPStrategy
    from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy as ModelParallelStrategy
    from lightning_fabric.strategies.strategy import Strategy as Strategy
    from lightning_fabric.wrappers import _FabricModule as _FabricModule


# Start: all ranks meet

RENDEZVOUS_SECONDS = 600.0
"""time in which all ranks must have started; before they meet, each of them reads the data"""
QUIET_SECONDS = 10.0
"""time a rank waits for the others before it prints that it waits"""
STORAGE_SECONDS = 10.0
"""time a file server gets to show a file that another machine has written"""


@contextmanager
def rendezvous_timeout(processes: int) -> Iterator[None]:
    """End this process with a message if the run's processes do not meet within this block in time.

    torch would wait for half an hour without a message. SPACEDKD_JOIN_SECONDS sets another time.
    """
    variable = os.environ.get("SPACEDKD_JOIN_SECONDS", "")
    limit = float(variable) if variable.isdigit() else RENDEZVOUS_SECONDS
    address = f"{os.environ.get('MASTER_ADDR', 'this machine')}:{os.environ.get('MASTER_PORT', '')}".rstrip(":")
    met = threading.Event()

    def wait() -> None:
        if met.wait(min(QUIET_SECONDS, limit)):
            return
        _print_once(f"waiting for all {processes} processes of the run to meet at {address}, for at most {limit:.0f} s")
        if not met.wait(limit - min(QUIET_SECONDS, limit)):
            _print_once(
                f"The {processes} processes of the run have not met at {address} within {limit:.0f} s. Start all of "
                "them, or let them wait longer with SPACEDKD_JOIN_SECONDS=3600."
            )
            os._exit(2)  # the main thread hangs in torch, where no exception reaches it

    if processes > 1:
        threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        met.set()


def check_shared_storage(fabric: Fabric, file: Path) -> None:
    """Refuse machines that do not share the storage a run is written to; the first rank has written `file` there."""
    if fabric.world_size == 1:
        return
    visible, limit = file.exists(), time.monotonic() + STORAGE_SECONDS
    while not visible and time.monotonic() < limit:
        time.sleep(0.1)
        visible = file.exists()
    hosts: list[str | None] = [None] * fabric.world_size
    distributed.all_gather_object(hosts, None if visible else socket.gethostname())
    for host in hosts:
        if host is not None:
            raise UserError(
                f"{host} does not see {file.parent}, which the first machine writes to. All machines must share the "
                "storage of runs and data: give --out a folder there."
            )


def _print_once(line: str) -> None:
    """Print a line from the one process of this machine that prints."""
    if started.speaks():
        _print(line)


def _print(line: str) -> None:
    with suppress(OSError):  # of a terminal that was closed
        print(f"spacedkd: {printable(line)}", file=sys.stderr, flush=True)


# Failure: all ranks end together

GRACE_SECONDS = 2.0
"""time the training thread gets to fail by itself, before it is taken to hang in a collective operation"""
CONNECT_SECONDS = 60.0
HANDSHAKE_BYTES = 32
"""length of a rank's first message, fixed so that later messages are not read with it"""


@contextmanager
def watch_ranks(fabric: Fabric, resume_command: str) -> Iterator[None]:
    """End this rank when another rank ends with an error, and notify the others when this one does.

    An error of another rank is raised here as `UserError`. If this rank hangs in a collective operation, where nothing
    can be raised, its process exits with code 2. For a rank that was killed the message names the `resume_command`.
    """
    if fabric.world_size == 1:
        yield
        return
    with ExitStack() as stack:
        peers = {rank: stack.enter_context(connection) for rank, connection in _connect(fabric).items()}
        watcher = _RankWatcher(peers, fabric.global_rank, fabric.world_size, resume_command)
        watcher.start()
        disable_child_observer(fabric)
        try:
            yield
        except BaseException as error:
            watcher.ends_by_itself.set()
            # A collective operation raises RuntimeError when another rank is gone; that rank's error is the cause.
            if isinstance(error, RuntimeError) and watcher.peer_failed.wait(GRACE_SECONDS):
                _send_last_line(peers, watcher.message)
                raise UserError(watcher.message) from None
            _send_last_line(peers, str(error) if isinstance(error, UserError) else repr(error).splitlines()[0])
            raise
        else:
            watcher.ends_by_itself.set()
            _send_last_line(peers, "")
        finally:
            watcher.join(GRACE_SECONDS)  # before the connections it reads from are closed


class _RankWatcher(threading.Thread):
    """A thread that waits for the last line of every peer: empty where it has ended well, else its error."""

    def __init__(self, peers: Mapping[int, socket.socket], rank: int, ranks: int, resume_command: str) -> None:
        super().__init__(daemon=True)
        self.peers, self.rank, self.ranks, self.resume_command = peers, rank, ranks, resume_command
        self.peer_failed, self.message = threading.Event(), ""
        self.ends_by_itself = threading.Event()
        """set when this process's training thread ends, well or not"""

    def run(self) -> None:
        with suppress(ValueError, KeyError), DefaultSelector() as selector:  # a closed socket cannot be unregistered
            for rank, connection in self.peers.items():
                selector.register(connection, EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    try:
                        line = key.fileobj.recv(65536).decode(errors="replace")
                    except OSError:
                        line = ""
                    if line != "\n":
                        return self._fail(key.data, line.strip())
                    selector.unregister(key.fileobj)
        return None

    def _fail(self, rank: int, error: str) -> None:
        """End this process because a rank has failed with an error, or was killed and sent none."""
        was_killed = not error
        killed = f"Process {rank} of 0 to {self.ranks - 1} has died, so all stop. Resume with: {self.resume_command}"
        self.message = killed if was_killed else error
        self.peer_failed.set()
        if was_killed and self.rank == 1:  # the first rank prints; if it was the one killed, the second does
            _print(self.message)
        if self.ends_by_itself.wait(GRACE_SECONDS):
            return
        if self.rank == 0:
            _print(self.message)
        _send_last_line(self.peers, self.message)
        os._exit(2)  # the training thread hangs in a collective operation


def disable_child_observer(fabric: Fabric) -> None:
    """Keep Fabric from watching the processes that it has started.

    Its observer looks at them every five seconds. Once one has ended with an error it kills all with SIGKILL, also a
    first rank that is about to report the error, or to save. `watch_ranks` takes its place.
    """
    launcher = fabric.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        # The observer holds this list: it gets an empty one, and the launcher a copy.
        observed, launcher.procs = launcher.procs, [*launcher.procs]
        observed.clear()


def _send_last_line(peers: Mapping[int, socket.socket], error: str) -> None:
    for peer in peers.values():
        with suppress(OSError):  # a peer that has ended already
            peer.sendall(" ".join(error.split()).encode() + b"\n")


def _connect(fabric: Fabric) -> dict[int, socket.socket]:
    """Return connections by rank: from the first rank to all others, from every other rank to the first."""
    environment = fabric.strategy.cluster_environment  # type: ignore[attr-defined]
    several_machines = fabric.strategy.num_nodes > 1  # type: ignore[attr-defined]
    if fabric.global_rank == 0:
        with socket.create_server(("" if several_machines else environment.main_address, 0)) as server:
            server.settimeout(CONNECT_SECONDS)
            token = secrets.token_hex(8)  # any process may connect to an open port: only ranks know the token
            fabric.broadcast((server.getsockname()[1], token))
            connections: dict[int, socket.socket] = {}
            while len(connections) < fabric.world_size - 1:
                connection, _ = server.accept()
                handshake = connection.recv(HANDSHAKE_BYTES, socket.MSG_WAITALL).decode(errors="replace")
                received, _, rank = handshake.partition(" ")
                if received == token:
                    connections[int(rank)] = connection
            return connections
    port, token = fabric.broadcast((0, ""))
    connection = socket.create_connection((environment.main_address, port), CONNECT_SECONDS)
    connection.settimeout(None)
    connection.sendall(f"{token} {fabric.global_rank}".ljust(HANDSHAKE_BYTES).encode())
    return {0: connection}


# Stop: all ranks stop after the same turn


class CollectiveStop(AbstractContextManager["CollectiveStop"]):
    """A stop request to any rank that reaches all ranks after the same turn.

    After a turn each rank sends whether it was asked to stop, over a separate process group on the CPUs, and reads the
    result of the turn before. So no rank waits for another, and GPUs are not synchronised. Ranks that wait for a
    snapshot look for it together: all of them get it, or stop, at the same time.
    """

    def __init__(self, fabric: Fabric, stop: Stop) -> None:
        self._stop, self._has_peers = stop, fabric.world_size > 1
        self._stop_while_waiting = False
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor] | None = None
        """unfinished all-reduce, and the tensor of its result"""

    def __enter__(self) -> "CollectiveStop":
        if self._has_peers:
            self._group = distributed.new_group(backend="gloo")
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and self._group is not None:
            self._receive()
            distributed.destroy_process_group(self._group)

    def poll(self) -> bool:
        """Return whether to stop after this turn; with several ranks, whether one was asked to at the turn before."""
        if self._group is None:
            return self._stop()
        if self._receive():
            return True
        flag = torch.tensor([int(self._stop())])
        self._pending = (distributed.all_reduce(flag, group=self._group, async_op=True), flag)
        return False

    def all_ready(self, ready: bool) -> bool:
        """Return whether `ready` is true on all ranks."""
        if self._group is None:
            return ready
        flags = torch.tensor([int(self._stop()), int(not ready)])
        distributed.all_reduce(flags, group=self._group)
        self._stop_while_waiting, missing = map(bool, flags)
        return not missing

    def poll_waiting(self) -> bool:
        """Return whether to stop waiting; of several ranks, as they agreed in the last call of `all_ready`."""
        return self._stop() if self._group is None else self._stop_while_waiting

    def _receive(self) -> bool:
        if self._pending is None:
            return False
        (work, flag), self._pending = self._pending, None
        work.wait()
        return bool(flag)


# FSDP2: every device keeps a shard of the weights, and gathers a block's weights while it computes that block.
# Every model is sharded by itself, frozen ones too. What is saved is whole, so that any number of devices can read it.


def fsdp_strategy(processes: int) -> ModelParallelStrategy:
    """Return Fabric's strategy that shards models over the processes."""
    return ModelParallelStrategy(_shard, data_parallel_size=processes, tensor_parallel_size=1)


def uses_fsdp(fabric: Fabric) -> bool:
    """Return whether models are sharded over the processes."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def shard_frozen(fabric: Fabric, model: nn.Module) -> None:
    """Shard a model that will not learn. Memory banks have no parameters and stay whole."""
    assert isinstance(fabric.strategy, ModelParallelStrategy)
    if any(True for _ in model.parameters()):
        _shard(model, fabric.strategy.device_mesh)
    else:
        fabric.to_device(model)


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for part in [*network_blocks(model), model]:
        # The outermost module reshards after a pass too: weights are then read as shards everywhere.
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return model


def network_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a network's blocks: the parts of its outermost nn.Sequential and nn.ModuleList that have parameters.

    These are the blocks of a transformer, or the stages of a ResNet.
    """
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from (part for part in child if any(True for _ in part.parameters()))
        else:
            yield from network_blocks(child)


# Tensors that ranks exchange


def broadcast_buffers(module: nn.Module) -> None:
    """Give all ranks the first rank's buffers of a module, in one broadcast for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in module.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        distributed.broadcast(flat, 0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))


def gather_rows(fabric: Fabric, rows: Tensor) -> Tensor:
    """Return the rows of all ranks, one rank after the other; ranks may have different numbers of rows."""
    if fabric.world_size == 1:
        return rows
    counts = _all_gather(torch.tensor(len(rows), device=rows.device), fabric.world_size)
    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    gathered = _all_gather(padded, fabric.world_size)
    return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)])


def _all_gather(tensor: Tensor, ranks: int) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(ranks)]
    distributed.all_gather(gathered, tensor)
    return gathered


# BatchNorm over the whole batch of all ranks.
# torch.nn.SyncBatchNorm computes on GPUs only, and replaces a module, whose activation it drops where timm has fused
# one. Here the modules keep their classes and names, and learn in the same way on any device.


def synchronize_batch_norm(model: nn.Module) -> None:
    """Let every BatchNorm of a model use the mean and variance of the whole batch of all ranks.

    mean = sum_r sum(x_r) / n,  var = sum_r sum((x_r - mean)^2) / n  over the ranks r, whose parts may differ in size.
    Refuses a model without BatchNorm, or with an unknown class of it.
    """
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if not norms:
        raise UserError("sync_batchnorm does not matter: the network has no BatchNorm. Leave it out.")
    for norm in norms:
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d):
            raise UserError(f"sync_batchnorm does not know the network's {type(norm).__name__}: leave it out.")
        norm.forward = partial(_forward_batch_norm, norm)  # type: ignore[method-assign]


def _forward_batch_norm(norm: _BatchNorm, x: Tensor) -> Tensor:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        out = _normalise_by_whole_batch(norm, x)
    else:
        out = batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return norm.act(norm.drop(out)) if isinstance(norm, BatchNormAct2d) else out


def _normalise_by_whole_batch(norm: _BatchNorm, x: Tensor) -> Tensor:
    other_axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]  # to broadcast one value for each channel
    exact = x.double() if x.dtype == torch.float64 else x.float()
    own_count = exact.new_tensor([x.numel() // x.shape[1]])
    total = _all_reduce_sum(torch.cat([exact.sum(other_axes), own_count]))
    count = total[-1].detach()
    mean = total[:-1] / count
    centred = exact - mean.view(shape)
    variance = _all_reduce_sum(centred.square().sum(other_axes)) / count
    if norm.training and norm.track_running_stats:
        _update_statistics(norm, mean.detach(), variance.detach() * count / (count - 1))
    out = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.weight is not None:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    normalised: Tensor = out.to(x.dtype)
    return normalised


class _AllReduceSum(torch.autograd.Function):
    """The sum over all ranks. Its gradient is summed too, because every rank's loss depends on the sum."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _AllReduceSum.forward(context, gradient)


def _all_reduce_sum(part: Tensor) -> Tensor:
    total: Tensor = _AllReduceSum.apply(part)
    return total


def _update_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    weight = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), weight)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), weight)
