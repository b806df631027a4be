"""BatchNorm over the whole batch of all processes.

torch.nn.SyncBatchNorm computes on GPUs only and takes the place of a module, whose activation it then forgets where
timm has fused one. Here the modules stay what they are, under the same names, and learn alike on any device.
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
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
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
from spacedkd.training.fabric import Fabric, ModelParallelStrategy, disable_child_observer

# Processes of one run end together: when one dies, the others do not wait for it for ever.

GRACE_SECONDS = 2.0
"""seconds in which the thread that trains can find out itself, before it is taken to hang in an operation"""
CONNECT_SECONDS = 60.0
RENDEZVOUS_SECONDS = 600.0
"""seconds in which all ranks are there; before they meet, each of them reads the data"""
QUIET_SECONDS = 10.0
"""seconds of waiting without a word"""
STORAGE_SECONDS = 10.0
HANDSHAKE_BYTES = 32
"""bytes in which a rank says who it is; what it says later must not be read with them"""


@contextmanager
def watch_ranks(fabric: Fabric, way_on: str) -> Iterator[None]:
    """While this lasts the end of any rank is the end of all; `way_on` is how the run is taken up again."""
    if fabric.world_size == 1:
        yield
        return
    with ExitStack() as stack:
        others = {rank: stack.enter_context(line) for rank, line in _connected(fabric).items()}
        watch = _Watch(others, fabric.global_rank, fabric.world_size, way_on)
        watch.start()
        disable_child_observer(fabric)
        try:
            yield
        except BaseException as error:
            watch.ends.set()
            if isinstance(error, RuntimeError) and watch.found.wait(
                GRACE_SECONDS
            ):  # an operation failed since a rank is gone
                _tell(others, watch.line)
                raise UserError(watch.line) from None
            _tell(others, str(error) if isinstance(error, UserError) else repr(error).splitlines()[0])
            raise
        else:
            watch.ends.set()
            _tell(others, "")
        finally:
            watch.join(GRACE_SECONDS)  # it listens to what is closed now


@contextmanager
def rendezvous_timeout(processes: int) -> Iterator[None]:
    """While this lasts the processes of a run find each other; if one does not come, a line says so in the end.

    torch would wait for half an hour, without a word.
    """
    asked = os.environ.get("SPACEDKD_JOIN_SECONDS", "")
    limit = float(asked) if asked.isdigit() else RENDEZVOUS_SECONDS
    where = f"{os.environ.get('MASTER_ADDR', 'this machine')}:{os.environ.get('MASTER_PORT', '')}".rstrip(":")
    here = threading.Event()

    def watch() -> None:
        if here.wait(min(QUIET_SECONDS, limit)):
            return
        _say(f"waiting for all {processes} processes of the run to meet at {where}, for at most {limit:.0f} s")
        if not here.wait(limit - min(QUIET_SECONDS, limit)):
            _say(
                f"The {processes} processes of the run have not met at {where} within {limit:.0f} s. Start all of "
                "them, or let them wait longer with SPACEDKD_JOIN_SECONDS=3600."
            )
            os._exit(2)

    if processes > 1:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        here.set()


def _say(line: str) -> None:
    if started.speaks():
        with suppress(OSError):  # of a terminal that was closed
            print(f"spacedkd: {printable(line)}", file=sys.stderr, flush=True)


def check_shared_storage(fabric: Fabric, file: Path) -> None:
    """Refuse machines that do not share the storage a run is written to; `file` is one the first rank has written."""
    if fabric.world_size == 1:
        return
    seen, limit = file.exists(), time.monotonic() + STORAGE_SECONDS
    while not seen and time.monotonic() < limit:  # a file server may take a while
        time.sleep(0.1)
        seen = file.exists()
    blind: list[str | None] = [None] * fabric.world_size
    distributed.all_gather_object(blind, None if seen else socket.gethostname())
    for host in blind:
        if host is not None:
            raise UserError(
                f"{host} does not see {file.parent}, which the first machine writes to. All machines must share the "
                "storage of runs and data: give --out a folder there."
            )


class CollectiveStop(AbstractContextManager["CollectiveStop"]):
    """Whether a run is to stop; as soon as one rank is asked to, all of them do, after the same turn.

    After a turn each rank sends off what it was asked, over a group of its own on the CPUs, and looks at what came of
    that of the turn before: nobody waits for it, and on GPUs nothing is synchronised. While they wait for something,
    ranks look for it together, so that all of them find it, or stop, at the same time.
    """

    def __init__(self, fabric: Fabric, stop: Stop) -> None:
        self._stop, self._several = stop, fabric.world_size > 1
        self._stops_waiting = False
        self._group: Any = None
        self._sent: tuple[Any, torch.Tensor] | None = None

    def __enter__(self) -> "CollectiveStop":
        if self._several:
            self._group = distributed.new_group(backend="gloo")
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and self._group is not None:
            self._received()
            distributed.destroy_process_group(self._group)

    def poll(self) -> bool:
        if self._group is None:
            return self._stop()
        if self._received():
            return True
        flag = torch.tensor([int(self._stop())])
        self._sent = (distributed.all_reduce(flag, group=self._group, async_op=True), flag)
        return False

    def all_ready(self, ready: bool) -> bool:
        """Whether what all ranks wait for is there for each of them."""
        if self._group is None:
            return ready
        found = torch.tensor([int(self._stop()), int(not ready)])
        distributed.all_reduce(found, group=self._group)
        self._stops_waiting, missing = map(bool, found)
        return not missing

    def poll_waiting(self) -> bool:
        """Whether to stop while something is not there; of several ranks, as they said when they last looked."""
        return self._stop() if self._group is None else self._stops_waiting

    def _received(self) -> bool:
        if self._sent is None:
            return False
        (work, flag), self._sent = self._sent, None
        work.wait()
        return bool(flag)


def _tell(others: Mapping[int, socket.socket], line: str) -> None:
    """The last thing a rank says: nothing where all is well."""
    for other in others.values():
        try:
            other.sendall(" ".join(line.split()).encode() + b"\n")
        except OSError:  # it has gone already
            continue


class _Watch(threading.Thread):
    """Waits for the last word of each of the others."""

    def __init__(self, others: Mapping[int, socket.socket], rank: int, ranks: int, way_on: str) -> None:
        super().__init__(daemon=True)
        self.others, self.rank, self.ranks, self.way_on = others, rank, ranks, way_on
        self.found, self.line = threading.Event(), ""
        self.ends = threading.Event()
        """set when this process ends by itself"""

    def run(self) -> None:
        with suppress(ValueError, KeyError), DefaultSelector() as selector:  # what is closed cannot be unregistered
            for rank, line in self.others.items():
                selector.register(line, EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    try:
                        said = key.fileobj.recv(65536).decode(errors="replace")
                    except OSError:
                        said = ""
                    if said != "\n":
                        return self._end(key.data, said.strip())
                    selector.unregister(key.fileobj)
        return None

    def _end(self, rank: int, said: str) -> None:
        died = f"Process {rank} of 0 to {self.ranks - 1} has died, so all stop. Go on with: {self.way_on}"
        self.line = said or died
        self.found.set()
        if not said and self.rank == 1:  # in place of the first, which speaks as long as it lives
            self._say()
        if self.ends.wait(GRACE_SECONDS):
            return
        if self.rank == 0:
            self._say()
        _tell(self.others, self.line)
        os._exit(2)

    def _say(self) -> None:
        with suppress(OSError):
            print(f"spacedkd: {printable(self.line)}", file=sys.stderr, flush=True)


def _connected(fabric: Fabric) -> dict[int, socket.socket]:
    """From the first rank a connection to every other one, and from each of those one to the first."""
    environment = fabric.strategy.cluster_environment  # type: ignore[attr-defined]
    several_machines = fabric.strategy.num_nodes > 1  # type: ignore[attr-defined]
    if fabric.global_rank == 0:
        with socket.create_server(("" if several_machines else environment.main_address, 0)) as server:
            server.settimeout(CONNECT_SECONDS)
            token = secrets.token_hex(8)
            fabric.broadcast((server.getsockname()[1], token))
            found: dict[int, socket.socket] = {}
            while len(found) < fabric.world_size - 1:
                line, _ = server.accept()
                word, _, rank = line.recv(HANDSHAKE_BYTES, socket.MSG_WAITALL).decode(errors="replace").partition(" ")
                if word == token:
                    found[int(rank)] = line
            return found
    port, token = fabric.broadcast((0, ""))
    line = socket.create_connection((environment.main_address, port), CONNECT_SECONDS)
    line.settimeout(None)
    line.sendall(f"{token} {fabric.global_rank}".ljust(HANDSHAKE_BYTES).encode())
    return {0: line}


# Networks whose weights are spread over devices (FSDP2): each keeps a part, and has a block whole while it computes.


def fsdp_strategy(processes: int) -> ModelParallelStrategy:
    """Fabric's strategy for it, with as many parts as there are processes."""
    return ModelParallelStrategy(_sharded, data_parallel_size=processes, tensor_parallel_size=1)


def uses_fsdp(fabric: Fabric) -> bool:
    return isinstance(fabric.strategy, ModelParallelStrategy)


def shard_frozen(fabric: Fabric, model: nn.Module) -> None:
    """Spread a model that will not learn; memories have no weights and stay whole."""
    assert isinstance(fabric.strategy, ModelParallelStrategy)
    if any(True for _ in model.parameters()):
        _sharded(model, fabric.strategy.device_mesh)
    else:
        fabric.to_device(model)


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for part in [*network_blocks(model), model]:
        # The outermost too gives its weights back after a pass: whoever reads them then reads parts.
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return model


def network_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What stands in a network's outermost rows of modules: the blocks of a transformer or of a ResNet's stages."""
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from (part for part in child if any(True for _ in part.parameters()))
        else:
            yield from network_blocks(child)


# BatchNorm over the whole batch of all processes.


def synchronize_batch_norm(model: nn.Module) -> None:
    """Let every BatchNorm of a model normalise by the mean and variance of the whole batch, and keep those.

    mean = sum_r sum(x_r) / n,  var = sum_r sum((x_r - mean)^2) / n  over the ranks r, whose parts may differ in size.
    """
    parts = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if not parts:
        raise UserError("sync_batchnorm does not matter: the network has no BatchNorm. Leave it out.")
    for part in parts:
        if type(part) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d):
            raise UserError(f"sync_batchnorm does not know the network's {type(part).__name__}: leave it out.")
        part.forward = partial(_normalised, part)  # type: ignore[method-assign]


def _normalised(norm: _BatchNorm, x: Tensor) -> Tensor:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        out = _by_whole_batch(norm, x)
    else:
        out = batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return norm.act(norm.drop(out)) if isinstance(norm, BatchNormAct2d) else out


def _by_whole_batch(norm: _BatchNorm, x: Tensor) -> Tensor:
    over = [place for place in range(x.ndim) if place != 1]
    shape = [-1 if place == 1 else 1 for place in range(x.ndim)]
    exact = x.double() if x.dtype == torch.float64 else x.float()
    here = exact.new_tensor([x.numel() // x.shape[1]])
    total = _sum_of_all(torch.cat([exact.sum(over), here]))
    count = total[-1].detach()
    mean = total[:-1] / count
    centred = exact - mean.view(shape)
    variance = _sum_of_all(centred.square().sum(over)) / count
    if norm.training and norm.track_running_stats:
        _keep(norm, mean.detach(), variance.detach() * count / (count - 1))
    out = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.weight is not None:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    found: Tensor = out.to(x.dtype)
    return found


class _SumOfAll(torch.autograd.Function):
    """The sum over all processes; each of them learns from what the sum does to all losses."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _SumOfAll.forward(context, gradient)


def _sum_of_all(part: Tensor) -> Tensor:
    total: Tensor = _SumOfAll.apply(part)
    return total


def _keep(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)
