"""The heartbeat: a small file in a run's folder with its progress, written every few seconds for `spacedkd status`.

It is no part of the run: nothing else reads it, and a finished run has none.
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
_LEFT_OUT = ("accuracy", "losses", "lr")
"""fields of an event: they are in the journal, and reading losses may wait for a device"""


class Heartbeat(Callback):
    """The progress of a run, and the thread that writes it."""

    def __init__(self, run: Folder) -> None:
        self._run, self._path = run, run.path / PROGRESS
        self._progress: dict[str, Any] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Take the progress that is written next."""
        self._progress["event"] = event

    def note_saved(self, turn: int) -> None:
        """Take the number of turns from which the run would resume."""
        self._progress["saved"] = turn

    @contextmanager
    def running(self, turn: int, turns: int, roles: Sequence[str]) -> Iterator[None]:
        """Write the file while a run is trained, and at last how it ended, unless it is finished."""
        self._progress = {"began": time.time(), "saved": turn, "turn": turn, "turns": turns, "roles": [*roles]}
        ended = {"ended": "stopped"}
        self._write()
        self._thread = threading.Thread(target=self._write_often, daemon=True)
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
        """Remove the file before the run is finished: a finished run has none, wherever a kill comes."""
        self._stop()
        self._run.remove(self._path)

    def _write_often(self) -> None:
        while not self._ends.wait(BEAT_SECONDS):
            self._write()

    def _stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, more: Mapping[str, Any] | None = None) -> None:
        """Replace the file whole, but do not force it to disk: after a power cut nobody trains.

        A full disk ends nothing here, nor does a folder that was moved: what the run itself writes next will.
        """
        progress = dict(self._progress)
        event = progress.pop("event", None)
        where = {} if event is None else {k: v for k, v in event._asdict().items() if k not in _LEFT_OUT}
        who = {"host": HOST, "process": os.getpid(), "time": time.time()}
        unfinished = self._path.with_name(f"{PROGRESS}.unfinished")
        with suppress(OSError, UserError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(self._run.open(unfinished, flags), "w", encoding="utf-8") as file:
                json.dump({**who, **progress, **where, **(more or {})}, file)
            self._run.rename(unfinished, self._path, durable=False)


def _kind(error: BaseException) -> str:
    if isinstance(error, Exception):
        return "diverged" if isinstance(error, Diverged) else "failed"
    return "killed"  # by who did not want to wait for what would be saved


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
