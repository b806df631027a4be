"""A page in a real browser without its window: Chromium, spoken to over two pipes (--remote-debugging-pipe).

Taken is the first of these that is on the PATH; tests are skipped where there is none.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = "in a browser: no chromium, google-chrome or chrome on the PATH"
"""why a test that needs a browser is skipped"""


def found() -> str | None:
    return next((place for name in NAMES if (place := shutil.which(name))), None)


class Browser:
    """One page of one browser; what it complains about is collected."""

    def __init__(self, program: str, home: Path, width: int, height: int) -> None:
        (low_read, self._write), (self._read, low_write) = os.pipe(), os.pipe()
        to_read, to_write = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (low_read, low_write))
        quiet = ("--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
        flags = ("--headless", "--no-sandbox", "--remote-debugging-pipe", f"--window-size={width},{height}", *quiet)
        # It reads from 3 and writes to 4, and our ends of the pipes must not be there already.
        pipes = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", pipes, program, *flags, f"--user-data-dir={home}", "about:blank"]
        log = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdout=log, stderr=log)
        for here in (low_read, low_write, to_read, to_write):
            os.close(here)
        self._left, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in pages if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **given: Any) -> Any:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        said = json.dumps({"id": self._number, "method": method, "params": given, **session})
        os.write(self._write, said.encode() + b"\0")
        while (heard := self._hear()).get("id") != self._number:
            pass
        assert "error" not in heard, heard
        return heard["result"]

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._hear().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._read, 65536)
            assert more, "the browser is gone"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        if heard.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(heard["params"]))
        return heard
