"""A small server that speaks as much of the Hugging Face Hub's protocol as downloading a model takes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "5" * 40
REFUSALS = {"": 403, "RepoNotFound": 404, "RevisionNotFound": 404, "EntryNotFound": 404, "GatedRepo": 403}


class HubServer:
    """Serves folders as models, at `endpoint`.

    models: name -> folder; they have the branch "main" and the tag "v1". gated: names that are refused. token: what
    the last request brought. broken: paths in a repository whose connection breaks off half way, the next times that
    they are asked for -> how often. failing: those that are refused without a reason. asked: paths of files that were
    sent, in order. sent_bytes: how much of each.
    """

    def __init__(self, models: dict[str, Path]):
        self.models = models
        self.gated: set[str] = set()
        self.token = ""
        self.broken: dict[str, int] = {}
        self.failing: set[str] = set()
        self.asked: list[str] = []
        self.sent_bytes: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[HubServer]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Request(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self, unquote(urlparse(self.path).path), parse_qs(urlparse(self.path).query))

            do_HEAD = do_GET

            def log_message(self, *arguments: object) -> None:
                """Write no line for each request."""

        return Request

    def _answer(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        self.token = request.headers.get("Authorization", "")
        if path == "/api/models":
            text = query.get("search", [""])[0]
            found = [self._facts(name) for name in self.models if text.lower() in name.lower()]
            send_json(request, found)
            return
        is_api = path.startswith("/api/models/")
        words = path.removeprefix("/api/models/").strip("/").split("/")
        name = "/".join(words[:2])
        what, revision = [*words[2:4], "", ""][:2]
        problem = self._problem(name, revision or "main", is_api)
        if problem:
            refuse(request, problem)
        elif is_api:
            send_json(request, self._tree(name) if what == "tree" else self._facts(name))
        else:
            self._send_file(request, self.models[name], "/".join(words[4:]))

    def _problem(self, name: str, revision: str, is_api: bool) -> str:
        if name not in self.models:
            return "RepoNotFound"
        if revision not in ("main", "v1", COMMIT):
            return "RevisionNotFound"
        return "GatedRepo" if name in self.gated and not is_api else ""  # anyone may read what a gated model is

    def _facts(self, name: str) -> dict:
        files = [{"rfilename": file["path"], "size": file["size"]} for file in self._tree(name)]
        tags = ["diffusers", "license:apache-2.0"]
        gated = "manual" if name in self.gated else False
        return {"id": name, "sha": COMMIT, "siblings": files, "tags": tags, "gated": gated, "downloads": 7}

    def _tree(self, name: str) -> list[dict]:
        folder = self.models[name]
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [
            {"type": "file", "path": path.relative_to(folder).as_posix(), "size": size_of(path), "oid": etag(path)}
            for path in files
        ]

    def _send_file(self, request: BaseHTTPRequestHandler, folder: Path, name: str) -> None:
        path = folder / name
        if not path.is_file() or name in self.failing:
            refuse(request, "" if name in self.failing else "EntryNotFound")
            return
        content = path.read_bytes()
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("ETag", f'"{etag(path)}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.end_headers()
        if request.command == "HEAD":
            return
        self.asked.append(name)
        if self.broken.get(name, 0) > 0:
            self.broken[name] -= 1
            self._send(request, name, content[start : start + (len(content) - start) // 2])
            request.close_connection = True
            return
        self._send(request, name, content[start:])

    def _send(self, request: BaseHTTPRequestHandler, name: str, content: bytes) -> None:
        self.sent_bytes[name] += len(content)
        request.wfile.write(content)


def size_of(path: Path) -> int:
    return path.stat().st_size


def etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def refuse(request: BaseHTTPRequestHandler, problem: str) -> None:
    request.send_response(REFUSALS[problem])
    if problem:
        request.send_header("X-Error-Code", problem)
    request.send_header("Content-Length", "0")
    request.end_headers()


def send_json(request: BaseHTTPRequestHandler, content: object) -> None:
    body = json.dumps(content).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.send_header("X-Repo-Commit", COMMIT)
    request.end_headers()
    request.wfile.write(body)
