"""A small file in a run's folder that says, every few seconds, who trains it, how far it is and how fast it goes.

`spacedkd status` reads it. It is no part of the run: nothing else does, and a finished run has none.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from spacedkd.runs.status import PROGRESS
from spacedkd.runtime.errors import Diverged, UserError
from spacedkd.runtime.files import HOST, Folder
from spacedkd.training.loop import Callback, Event

BEAT_SECONDS = 5.0
_NOT_SAID = ("accuracy", "losses", "lr")
"""of a moment: the journal says these, and looking at losses may wait for a device"""


class Heartbeat(Callback):
    """What is known of a run that goes on, and the thread that writes it down."""

    def __init__(self, run: Folder) -> None:
        self._run, self._path = run, run.path / PROGRESS
        self._known: dict[str, Any] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Take the progress that is written next."""
        self._known["event"] = event

    def note_saved(self, turn: int) -> None:
        """Take the number of turns from which the run would resume."""
        self._known["saved"] = turn

    @contextmanager
    def beating(self, turn: int, turns: int, roles: Sequence[str]) -> Iterator[None]:
        """While the run is trained, from this turn on; the file then says how it ended, if it is not finished."""
        self._known = {"began": time.time(), "saved": turn, "turn": turn, "turns": turns, "roles": [*roles]}
        ended = {"ended": "stopped"}
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        try:
            yield
        except BaseException as error:
            ended = {"ended": _kind(error), "said": _line(error)}
            raise
        finally:
            self._stop()
            with suppress(OSError, UserError):
                if not self._run.exists(self._path.with_name("result.json")):
                    self._write(ended)

    def remove(self) -> None:
        """The run is about to be finished, after which there is no such file, wherever a kill comes."""
        self._stop()
        self._run.remove(self._path)

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_SECONDS):
            self._write()

    def _stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, more: Mapping[str, Any] | None = None) -> None:
        """Replaced whole, but not forced to disk: after a power cut nobody trains.

        A full disk ends nothing here, nor does a folder that was moved: what the run itself writes next will.
        """
        known = dict(self._known)
        event = known.pop("event", None)
        where = {} if event is None else {k: v for k, v in event._asdict().items() if k not in _NOT_SAID}
        who = {"host": HOST, "process": os.getpid(), "time": time.time()}
        unfinished = self._path.with_name(f"{PROGRESS}.unfinished")
        with suppress(OSError, UserError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(self._run.open(unfinished, flags), "w", encoding="utf-8") as file:
                json.dump({**who, **known, **where, **(more or {})}, file)
            self._run.rename(unfinished, self._path, durable=False)


def _kind(error: BaseException) -> str:
    if isinstance(error, Exception):
        return "diverged" if isinstance(error, Diverged) else "failed"
    return "killed"  # by who did not want to wait for what would be saved


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
