"""A hub on this host, as much of it as huggingface_hub asks for, and a process that looks models up there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent

_ASK = """
import json, sys
from checkpoint import CheckpointError, locate
for ask in json.loads(sys.argv[1]):
    told = []
    try:
        found = str(locate(ask.pop("model"), tell=told.append, **ask))
    except CheckpointError as error:
        found = f"error: {error}"
    print(json.dumps([found, told]))
print("torch" in sys.modules)
"""


@dataclass
class FakeHub:
    """Repositories by name, each a folder at one commit of its branch main."""

    repositories: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # whose files only those get who have accepted the terms
    asked: list[str] = field(default_factory=list)  # paths, as they came in
    address: str = ""
    silent: threading.Event = field(default_factory=threading.Event)  # while it is set, nobody is answered

    def commit(self, repo: str) -> str:
        return hashlib.sha1(repo.encode()).hexdigest()

    def sent(self) -> list[str]:
        """The names of the files whose contents were sent."""
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("GET") and "/resolve/" in path]

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        here = {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "NO_PROXY": "*", "HF_HUB_ETAG_TIMEOUT": "1"}
        return kept | here | more

    def ask(self, home: Path, *asks: dict[str, Any], **environment: str) -> list[tuple[str, list[str]]]:
        """Locate models in a process of its own; return for each what was found, or the error, and what was told."""
        done = subprocess.run(
            [sys.executable, "-c", _ASK, json.dumps(asks)],
            cwd=ROOT, env=self.environment(home, **environment), capture_output=True, text=True, timeout=50,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        *answers, torch = done.stdout.splitlines()
        assert torch == "False"
        return [(found, told) for found, told in map(json.loads, answers)]


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            if hub.silent.is_set():
                closing.wait(40)
                return
            status, headers, content = respond(hub, path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

    closing = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def respond(hub: FakeHub, path: str) -> tuple[int, dict[str, str], bytes]:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "models"]:
        repo, rest = "/".join(parts[2:4]), parts[4:]
    else:
        repo, rest = "/".join(parts[:2]), parts[2:]
    folder, commit = hub.repositories.get(repo), hub.commit(repo)
    if folder is None:
        return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
    if len(rest) > 1 and rest[1] not in ("main", commit):
        return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    if parts[0] == "api" and rest[:1] == ["tree"]:
        rows = [{"type": "file", "path": n, "size": len(c), "oid": _oid(c)} for n, c in files.items()]
        return 200, {"Content-Type": "application/json"}, json.dumps(rows).encode()
    if parts[0] == "api":
        siblings = [{"rfilename": n, "size": len(c), "blobId": _oid(c)} for n, c in files.items()]
        info = {"id": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()
    if repo in hub.gated:
        return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
    name = "/".join(rest[2:])
    if name not in files:
        return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""
    return 200, {"X-Repo-Commit": commit, "ETag": f'"{_oid(files[name])}"'}, files[name]


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
