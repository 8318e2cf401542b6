"""The messages of a run for a chat or a phone, as each service takes them. Pure functions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from modules.config.errors import UserError
from modules.session.redaction import redact

MAX_TEXT = 1000  # characters; Discord takes 2000 with the title
MAX_NAME = 100

EventName = Literal["test", "started", "resumed", "progress", "finished", "stopped", "failed"]
TAGS = {"finished": "white_check_mark", "stopped": "black_square_for_stop", "failed": "rotating_light"}  # of ntfy
_HIGH = 4  # ntfy's priority above the default


@dataclass(frozen=True)
class Message:
    """What is told of a run. run: its name. step, total: optimizer steps done and in all, 0 if unknown."""

    run: str
    event: EventName
    text: str = ""
    step: int = 0
    total: int = 0
    loss: float | None = None
    time: float = 0.0

    @property
    def title(self) -> str:
        name = self.run if len(self.run) <= MAX_NAME else f"{self.run[: MAX_NAME - 1]}…"
        return f"{name}: {self.event}"

    @property
    def body(self) -> str:
        """Figures and text, without secrets and the names of people and machines."""
        of = f" of {self.total:,}" if self.total else ""
        figures = [f"Step {self.step:,}{of}"] if self.step else []
        figures += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        line = f"{', '.join(figures)}." if figures else ""
        return "\n".join(part for part in (line, self.redacted_text) if part)

    @property
    def redacted_text(self) -> str:
        text = redact(self.text)
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def request_of(service: str, url: str, message: Message) -> tuple[str, dict[str, Any]]:
    """The address to post to, and the JSON to post. Raises UserError if `url` can't be one of `service`."""
    url = checked_url(service, url)
    if service == "discord":
        text = f"**{_escaped(message.title)}**\n{_escaped(message.body)}"
        return url, {"content": text.strip(), "allowed_mentions": {"parse": []}}
    if service == "slack":
        text = "\n".join(part for part in (f"*{_for_slack(message.title)}*", _for_slack(message.body)) if part)
        return url, {"text": text}
    if service == "ntfy":
        server, topic = _ntfy_topic(url)
        body: dict[str, Any] = {"topic": topic, "title": message.title, "message": message.body or message.title}
        if message.event in TAGS:
            body["tags"] = [TAGS[message.event]]
        return server, {**body, **({"priority": _HIGH} if message.event == "failed" else {})}
    return url, {**asdict(message), "text": message.redacted_text}


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=True, allow_nan=False).encode("ascii")


def checked_url(service: str, url: str) -> str:
    """Raises UserError, which does not show the address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or not url.isascii() or not url.isprintable() or " " in url:
        raise UserError("The address of the webhook is not one: it has to begin with https://, without spaces.")
    if parts.username or parts.password:
        raise UserError("The address of the webhook has a password: give it as CHORUS_WEBHOOK_TOKEN instead.")
    if service == "ntfy":
        _ntfy_topic(url)
    return url


def _ntfy_topic(url: str) -> tuple[str, str]:
    """The address of the server, and the topic: JSON is posted to the server alone."""
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    if not topic or "/" in topic:
        raise UserError(f"The address at ntfy has no topic: it looks like https://ntfy.sh/{quote('my-secret-topic')}.")
    return urlunsplit((parts.scheme, parts.netloc, "/", "", "")), topic


def _escaped(text: str) -> str:
    """Without the meaning that characters have in Discord's Markdown."""
    return "".join(f"\\{one}" if one in "\\*_~`|>#[]" else one for one in text)


def _for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
