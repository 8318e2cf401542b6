"""Serves the page of the runs: read only, to whoever has the token. docs/watching.md says what protects it."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from modules.config.installation import ROOT
from modules.config.own_file import no_follow
from modules.page.access import Access, is_loopback
from modules.page.page_html import message_page, run_page, runs_page, samples_of_page
from modules.page.PageRuns import CONTENT_TYPES, PageRuns
from modules.page.SmallSamples import SmallSamples

MAX_AT_ONCE = 32  # connections; more are closed
SOCKET_SECONDS = 20.0  # for a client to say or take something
CHUNK_BYTES = 1 << 18
STYLE = ROOT / "resources" / "page.css"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # an address may have the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Use `serve_forever`, in any thread, and `server_close`.

    address: where it listens. port: 0 for a free one. folders: the output folders whose runs are shown.
    Raises OSError if it can't listen there.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # on Windows, another program could take the port over

    def __init__(self, address: str, port: int, folders: Sequence[Path], access: Access):
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.access = access
        self.is_local = is_loopback(address)
        self._free = threading.BoundedSemaphore(MAX_AT_ONCE)
        self.runs = PageRuns(folders)  # first: `server_close` is also called if it can't listen
        super().__init__((address, port), PageHandler)
        self.small_samples = SmallSamples()

    def server_bind(self) -> None:
        """As ThreadingHTTPServer, which also asks a name server for the machine's name: that may take long."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet: a browser that closes a connection early is no error, and `PageHandler` answers all others."""

    def server_close(self) -> None:
        super().server_close()
        self.runs.close()


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: PageServer
    timeout = SOCKET_SECONDS
    server_version, sys_version = "Chorus", ""

    def do_GET(self) -> None:
        if not self.server.access.is_host(self.headers.get("Host", ""), self.connection.getsockname()[0]):
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "This server does not have that name.")
            return
        target = urlsplit(self.path)
        query = parse_qs(target.query)
        if "token" in query:
            self._take_token(query["token"][0], target.path)
        elif target.path == "/page.css":
            self._send(STYLE.read_bytes(), "text/css; charset=utf-8")
        elif not self.server.access.has_cookie(self.headers.get("Cookie", "")):
            self._say(HTTPStatus.FORBIDDEN, "Open the address with the token, as shown where the page was started.")
        else:
            self._answer([os.fsdecode(unquote_to_bytes(part)) for part in target.path.split("/")[1:]], _page_of(query))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of requests that can't be parsed or have other methods; nothing of them is repeated."""
        allowed = {"Allow": "GET, HEAD"} if code == HTTPStatus.NOT_IMPLEMENTED else {}
        code = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else code
        self.close_connection = True
        self._say(HTTPStatus(code), "This page can only be read.", allowed)

    def log_message(self, *_arguments: object) -> None:
        """Nothing is logged: addresses may have the token."""

    def _take_token(self, token: str, path: str) -> None:
        """Trade the token for a cookie, so that it does not stay in the address.

        By a page that goes on: browsers don't send a SameSite=Strict cookie along redirects that come from elsewhere,
        such as from a chat in which the address was tapped.
        """
        if not self.server.access.is_token(token):
            self._say(HTTPStatus.FORBIDDEN, "That is not the token of this page.")
            return
        goes_to = path if path.startswith("/") and not path.startswith("//") and "\\" not in path else "/"
        page = message_page("Chorus", "Opening the page.", goes_to)
        self._send(page.encode(), "text/html; charset=utf-8", {"Set-Cookie": self.server.access.set_cookie()})

    def _answer(self, parts: list[str], number: int) -> None:
        server = self.server
        if parts == [""]:
            self._html(runs_page(server.runs.all(), number, server.is_local))
            return
        if len(parts) < 3 or parts[0] != "runs" or not parts[1].isdecimal():
            self._not_found()
            return
        place, name, rest = int(parts[1][:6]), parts[2], parts[3:]
        if not rest:
            self._run(place, name, number)
            return
        path = server.runs.sample_path(place, name, "/".join(rest[1:])) if rest[0] in ("samples", "thumbs") else None
        if path is None or any("/" in part for part in rest):
            self._not_found()
        elif rest[0] == "thumbs":
            small = server.small_samples.of(path)
            self._not_found() if small is None else self._send(small, "image/jpeg", _KEPT)
        else:
            self._file(path)

    def _run(self, place: int, name: str, number: int) -> None:
        runs = self.server.runs
        shown = runs.run(place, name)
        if shown is None:
            self._not_found()
            return
        videos = {below: runs.video_of(shown, below) for below in samples_of_page(shown, number)}
        self._html(run_page(shown, number, videos, self.server.is_local))

    def _file(self, path: Path) -> None:
        """A file, or the part of it that is asked for: some browsers play no video without that."""
        try:
            with open(path, "rb", opener=no_follow) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    self._not_found()
                    return
                self._stream(file, status.st_size, CONTENT_TYPES[path.suffix.lower()])
        except OSError:  # gone meanwhile, or the browser has left
            self.close_connection = True

    def _stream(self, file: IO[bytes], size: int, kind: str) -> None:
        wanted = _range_of(self.headers.get("Range", ""), size)
        start, end = wanted or (0, size)
        headers = {**_KEPT, "Accept-Ranges": "bytes"}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._head(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK, kind, end - start, headers)
        if self.command == "HEAD":
            return
        file.seek(start)
        left = end - start
        while left > 0 and (chunk := file.read(min(left, CHUNK_BYTES))):
            self.wfile.write(chunk)
            left -= len(chunk)

    def _html(self, page: str) -> None:
        self._send(page.encode("utf-8", "replace"), "text/html; charset=utf-8")

    def _not_found(self) -> None:
        self._say(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _say(self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> None:
        self._send(message_page(status.phrase, text).encode(), "text/html; charset=utf-8", headers, status)

    def _send(
        self, data: bytes, kind: str, headers: dict[str, str] | None = None, status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        self._head(status, kind, len(data), headers or {})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _head(self, status: HTTPStatus, kind: str, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(size), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


_KEPT = {"Cache-Control": "private, max-age=3600"}


def _page_of(query: dict[str, list[str]]) -> int:
    text = query.get("page", ["1"])[0]
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 7 else 1


def _range_of(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of the one range that is asked for; None for the whole file, and for what is no such range."""
    unit, _, text = header.partition("=")
    first, dash, last = text.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not all(one.isdecimal() or not one for one in (first, last)) or not size:
        return None
    if not first:
        start, end = size - min(int(last or "0"), size), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None
