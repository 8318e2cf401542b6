"""Captions of a server that speaks OpenAI's chat form: each image is sent as a JPEG with the instruction."""

from __future__ import annotations

import base64
import io
import queue
import threading
from collections.abc import Sequence
from typing import Any

from PIL import Image

from modules.annotators.answers import as_caption
from modules.annotators.Captioner import Captioner, CaptionOptions, Failure
from modules.annotators.captioner_kinds import SERVER
from modules.annotators.chat_client import ChatServer, RequestRefused
from modules.annotators.prompts import instruction
from modules.config.errors import UserError

JPEG_QUALITY = 92
POLL_SECONDS = 0.1


class _ChatServer(Captioner):
    """Several images of a batch are asked for at the same time."""

    def __init__(self, server: ChatServer, model: str, options: CaptionOptions):
        self._server, self._options = server, options
        self._model = model or _only_model(server)

    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        """Gives up waiting when the run is canceled: an answer may take minutes."""
        answers: queue.SimpleQueue[tuple[int, str | Failure | BaseException]] = queue.SimpleQueue()

        def ask(number: int, frames: Sequence[Image.Image]) -> None:
            try:
                answers.put((number, self._ask(frames)))
            except BaseException as error:  # raised again below
                answers.put((number, error))

        for number, frames in enumerate(items):  # no pool, whose threads would keep the process from ending
            threading.Thread(target=ask, args=(number, frames), daemon=True).start()
        found: dict[int, str | Failure] = {}
        while len(found) < len(items) and not self._server.is_canceled():
            try:
                number, answer = answers.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[number] = answer
        return [found.get(number, Failure("canceled")) for number in range(len(items))]

    def _ask(self, frames: Sequence[Image.Image]) -> str | Failure:
        text = instruction(self._options, SERVER.styles[0], len(frames))
        content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in frames]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        request = {"model": self._model, "messages": [message], "max_tokens": self._options.max_tokens, "stream": False}
        try:
            return as_caption(self._server.complete(request))
        except RequestRefused as refusal:
            return Failure(str(refusal))


def _only_model(server: ChatServer) -> str:
    """The one that the server offers. Raises UserError if there are more, or none."""
    names = server.models()
    if len(names) != 1:
        listed = ", ".join(names[:8]) if names else "which the server does not list"
        raise UserError(f"--model: name one of the server's models: {listed}.")
    return names[0]


def data_url(image: Image.Image) -> str:
    """The image as a JPEG inside of an address, the form that all such servers take."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


CAPTIONER = _ChatServer
