"""A stand-in for the Hugging Face hub on this machine: it takes files, keeps them, and gives them out again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a_token"


class Hub(ThreadingHTTPServer):
    """What it was sent, by the path in its repository."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.refused = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        if self.headers["Authorization"] != f"Bearer {TOKEN}" or self.server.refused:
            self.answer(403, {"error": "You have no right to write here."})
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self.answer(200, {"url": f"{self.server.address}/me/small"})
        elif path == "/api/models/me/small/preupload/main":
            files = [{**one, "uploadMode": "regular", "shouldIgnore": False} for one in json.loads(body)["files"]]
            self.answer(200, {"files": files})
        elif path == "/api/models/me/small/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(200, {"commitUrl": f"{self.server.address}/me/small/commit/{COMMIT}", "commitOid": COMMIT})
        else:  # what a card may say is for the real hub to judge
            self.answer(200, {"errors": [], "warnings": []})

    def do_GET(self) -> None:
        name = self.path.removeprefix("/me/small/resolve/main/")
        if name in self.server.files:
            self.answer(200, self.server.files[name])
        else:
            self.answer(404, {"error": "There is nothing here."}, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, code: int, said: Any, headers: dict[str, str] | None = None) -> None:
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(code)
        known = {"Content-Length": str(len(content)), "ETag": f'"{len(content)}"', "X-Repo-Commit": COMMIT}
        for name, value in (known | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *said: Any) -> None:
        pass


@contextmanager
def stand_in() -> Iterator[Hub]:
    with Hub() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()
