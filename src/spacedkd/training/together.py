"""Processes of one run end together: when one dies, the others do not wait for it for ever.

A collective operation waits for all ranks. Beside the process group, each rank therefore holds a connection to the
first one: the system closes those of a process that is killed, and the others stop with a line that says so. A rank
that fails sends its line before it goes, so that the one rank that speaks can say it.
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import torch
from torch import distributed

from spacedkd import started
from spacedkd.errors import UserError, printable
from spacedkd.stopping import Stop
from spacedkd.training.fabric import Fabric, without_observer

GRACE = 2.0
"""seconds in which the thread that trains can find out itself, before it is taken to hang in an operation"""
CONNECTED_WITHIN = 60.0
JOINED_WITHIN = 600.0
"""seconds in which all ranks are there; before they meet, each of them reads the data"""
SILENCE = 10.0
"""seconds of waiting without a word"""
SHARED_WITHIN = 10.0
LONGEST = 32
"""bytes in which a rank says who it is; what it says later must not be read with them"""


@contextmanager
def together(fabric: Fabric, way_on: str) -> Iterator[None]:
    """While this lasts the end of any rank is the end of all; `way_on` is how the run is taken up again."""
    if fabric.world_size == 1:
        yield
        return
    with ExitStack() as stack:
        others = {rank: stack.enter_context(line) for rank, line in _connected(fabric).items()}
        watch = _Watch(others, fabric.global_rank, fabric.world_size, way_on)
        watch.start()
        without_observer(fabric)
        try:
            yield
        except BaseException as error:
            watch.ends.set()
            if isinstance(error, RuntimeError) and watch.found.wait(GRACE):  # an operation failed since a rank is gone
                _tell(others, watch.line)
                raise UserError(watch.line) from None
            _tell(others, str(error) if isinstance(error, UserError) else repr(error).splitlines()[0])
            raise
        else:
            watch.ends.set()
            _tell(others, "")
        finally:
            watch.join(GRACE)  # it listens to what is closed now


@contextmanager
def joining(processes: int) -> Iterator[None]:
    """While this lasts the processes of a run find each other; if one does not come, a line says so in the end.

    torch would wait for half an hour, without a word.
    """
    asked = os.environ.get("SPACEDKD_JOIN_SECONDS", "")
    limit = float(asked) if asked.isdigit() else JOINED_WITHIN
    where = f"{os.environ.get('MASTER_ADDR', 'this machine')}:{os.environ.get('MASTER_PORT', '')}".rstrip(":")
    here = threading.Event()

    def watch() -> None:
        if here.wait(min(SILENCE, limit)):
            return
        _say(f"waiting for all {processes} processes of the run to meet at {where}, for at most {limit:.0f} s")
        if not here.wait(limit - min(SILENCE, limit)):
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


def check_shared(fabric: Fabric, file: Path) -> None:
    """Refuse machines that do not share the storage a run is written to; `file` is one the first rank has written."""
    if fabric.world_size == 1:
        return
    seen, limit = file.exists(), time.monotonic() + SHARED_WITHIN
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


class Agreement(AbstractContextManager["Agreement"]):
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

    def __enter__(self) -> "Agreement":
        if self._several:
            self._group = distributed.new_group(backend="gloo")
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and self._group is not None:
            self._received()
            distributed.destroy_process_group(self._group)

    def after_turn(self) -> bool:
        if self._group is None:
            return self._stop()
        if self._received():
            return True
        flag = torch.tensor([int(self._stop())])
        self._sent = (distributed.all_reduce(flag, group=self._group, async_op=True), flag)
        return False

    def all_there(self, there: bool) -> bool:
        """Whether what all ranks wait for is there for each of them."""
        if self._group is None:
            return there
        found = torch.tensor([int(self._stop()), int(not there)])
        distributed.all_reduce(found, group=self._group)
        self._stops_waiting, missing = map(bool, found)
        return not missing

    def while_waiting(self) -> bool:
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
        if self.ends.wait(GRACE):
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
            server.settimeout(CONNECTED_WITHIN)
            token = secrets.token_hex(8)
            fabric.broadcast((server.getsockname()[1], token))
            found: dict[int, socket.socket] = {}
            while len(found) < fabric.world_size - 1:
                line, _ = server.accept()
                word, _, rank = line.recv(LONGEST, socket.MSG_WAITALL).decode(errors="replace").partition(" ")
                if word == token:
                    found[int(rank)] = line
            return found
    port, token = fabric.broadcast((0, ""))
    line = socket.create_connection((environment.main_address, port), CONNECTED_WITHIN)
    line.settimeout(None)
    line.sendall(f"{token} {fabric.global_rank}".ljust(LONGEST).encode())
    return {0: line}
