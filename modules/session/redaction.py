"""Remove secrets and the names of people, machines and networks from a text that is passed on.

Standard library only: the doctor uses it even if packages are missing.
"""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

_SECRETS = (
    (re.compile(r"\b(hf_|sk-|ghp_|github_pat_|xox[a-z]-|AKIA)[A-Za-z0-9_\-]{8,}"), "<secret>"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~=\-]{8,}"), r"\1 <secret>"),
    (re.compile(r"""(?i)\b([\w-]*(?:token|passw(?:or)?d|secret|api[_-]?key)\w*["']?\s*[=:]\s*["']?)[^\s"',;&]+"""),
     r"\1<secret>"),
    (re.compile(r"(\w+://)[^\s/@:]+(?::[^\s/@]*)?@"), r"\1<secret>@"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
    (re.compile(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)"), "<address>"),
)  # fmt: skip
_HOMES = re.compile(r"""(?i)(/home/|/Users/)[^/\\\s'":]+""")
# Names of people and companies may contain spaces here: match up to the next separator, if there is one.
_WINDOWS_HOMES = re.compile(r"""(?i)(\b[a-z]:[\\/]+Users[\\/]+)(?:[^\\/":\r\n]+(?=[\\/])|[^\\/\s'":]+)""")
_COMPANIES = re.compile(r"""(OneDrive - )[^\\/'":\r\n]+""")


def redact(text: str) -> str:
    """`text` without secrets, mail and network addresses, and the names of the user, the machine and home folders."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    home = re.split(r"[\\/]+", str(Path.home()))
    if len(home) > 1 and home[-1]:  # Windows accepts any case and either slash, and messages may escape backslashes
        text = re.sub(r"[\\/]+".join(map(re.escape, home)) + r"(?![\w-])", "~", text, flags=re.IGNORECASE)
    text = _WINDOWS_HOMES.sub(r"\1<user>", _HOMES.sub(r"\1<user>", text))
    text = _COMPANIES.sub(r"\1<company>", text)
    for name, stand_in in ((_user(), "<user>"), (socket.gethostname(), "<machine>")):
        if len(name) > 2 and name != "root":  # shorter names and "root" occur everywhere in logs
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stand_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name, or Windows without the variables
        return ""
