"""A small server that answers in OpenAI's chat form, as Ollama, LM Studio and vLLM do."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServerStandIn:
    """Answers each image with its number and size, at `address`.

    models: the names that it offers. requests: bodies of the questions, in order. keys: what came as Authorization with
    each. answers: (status, headers, body) of the next questions, in place of a caption. limit: how many questions it
    answers; later ones wait until `released` is set.
    """

    def __init__(self, models: tuple[str, ...] = ("tiny-vl",)):
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.limit = 1000
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextlib.contextmanager
    def running(self) -> Iterator[ChatServerStandIn]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(stand_in) -> type[BaseHTTPRequestHandler]:
        class Request(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.keys.append(self.headers.get("Authorization", ""))
                data = [{"id": name, "object": "model"} for name in stand_in.models]
                self.answer(200, {}, {"object": "list", "data": data})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stand_in.requests.append(body)
                stand_in.keys.append(self.headers.get("Authorization", ""))
                number = len(stand_in.requests)
                if number > stand_in.limit:
                    stand_in.released.wait()
                if stand_in.answers:
                    self.answer(*stand_in.answers.pop(0))
                    return
                width, height = sent_images(body)[0].size
                message = {"role": "assistant", "content": f'"an image of {width} x {height},\n number {number}"'}
                self.answer(200, {}, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

            def answer(self, status: int, headers: dict[str, str], content: Any) -> None:
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                with contextlib.suppress(OSError):  # of a client that was killed
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Write no line for each request."""

        return Request


def sent_images(request: dict[str, Any]) -> list[Any]:
    """The images in the body of a question, opened."""
    from PIL import Image

    content = request["messages"][-1]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2]))) for url in urls]


def sent_text(request: dict[str, Any]) -> str:
    """What the server was told to do with the images."""
    return next(part["text"] for part in request["messages"][-1]["content"] if part["type"] == "text")
