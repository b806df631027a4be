"""What is written while training goes on."""

import threading
from collections.abc import Callable


class Background:
    """One piece of work at a time in a thread of its own; whatever goes wrong in it is raised where it is looked at."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin when what was begun before is done."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(work,))
        self._thread.start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # it is the other thread's to tell
            self._error = error

    def wait(self) -> None:
        """Return when all is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what has gone wrong so far."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
