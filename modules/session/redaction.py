"""Remove secrets and the names of people, machines and networks from a text that is passed on.

Standard library only: the doctor uses it even if packages are missing.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Callable
from pathlib import Path

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

# Of Hugging Face, OpenAI and others, GitHub, GitLab, npm, PyPI, Docker, Slack, AWS and Google; a JSON Web Token last.
# First, addresses by which anybody can write to a chat or a phone.
_TOKENS = (
    r"\b(?:https?://(?:(?:[\w-]+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks|hooks\.slack\.com|ntfy\.sh)/[\w/-]+"
    r"|hf_[A-Za-z0-9]{16,}|api_org_\w{16,}|sk-[\w-]{8,}|gh[a-z]_\w{8,}|github_pat_\w{8,}"
    r"|gl[a-z]{2,6}-[\w-]{16,}|npm_\w{16,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{8,}|xox[a-z]-[\w-]{8,}|A[KS]IA[A-Z0-9]{8,}|AIza[\w-]{16,}"
    r"|ya29\.[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)*)"
)
_KEY_BLOCK = r"(?s)-----BEGIN ([A-Z ]*PRIVATE KEY)-----(?:.*?-----END \1-----|(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{16,})*)"
# "token", but not "tokenizer", "token_id" or "pad_token"
NAMES_OF_SECRETS = (
    r"(?:(?<!pad_)(?<!bos_)(?<!eos_)(?<!unk_)(?<!cls_)(?<!sep_)(?<!mask_)token(?!iz|s?_?(?:ids?|types?|len|count)\b)"
    r"|passw(?:or)?d|passphrase|secret|credential|(?:api|access|account|private)[_-]?key)\w*"
)
_SHORT_NAMES = r"(?:(?<![a-z0-9])|(?<=[a-z0-9][_-]))(?:pw|pwd)"
# Neither a number, as of "max_tokens: 77", nor a path, as of "PWD=/tmp", nor what stands in for something.
_PLAIN = r"(?!(?:\d{1,6}|true|false|none|null)\b|<)"
_PATH = r"(?![/~]|[a-z]:[\\/])"
# Presigned addresses, as storage services and the Hub give them.
_SIGNATURES = (
    r"(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|X-Xet-Cas-Uid|Key-Pair-Id"
    r"|AWSAccessKeyId|GoogleAccessId)"
)


def _address(match: re.Match[str]) -> str:
    """What stands for it, if it is an address: C++ scopes, as a::b, and times are none. Those of this machine stay."""
    text = match[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if address.is_loopback or address.is_unspecified:
        return text
    if address.version == 6 and address.ipv4_mapped is None and not any(address in net for net in _IN_USE):
        return text
    return "<address>"


_IN_USE = [ipaddress.ip_network(net) for net in ("2000::/3", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8")]
_RULES: tuple[_Rule, ...] = (
    (re.compile(_KEY_BLOCK), "<secret>"),
    (re.compile(_TOKENS), "<secret>"),
    (re.compile(r"(://)[^\s/@:]+(?::[^\s/@]*)?@"), r"\1<secret>@"),
    (re.compile(r"""(?i)(\bauthorization["']?\s*[=:]\s*["']?(?:[a-z]+\s+)?)[^\s"',;]+"""), r"\1<secret>"),
    # a word of prose, as in "basic settings", has neither a digit nor a capital letter within
    (re.compile(r"(?i:\b(bearer|basic))\s+(?=[\w+/.~-]*[0-9=]|[\w+/.~-]*[a-z][A-Z])[A-Za-z0-9+/._~=\-]{8,}"),
     r"\1 <secret>"),
    (re.compile(r"(?i)(\bcookie:\s*)[^\r\n]+"), r"\1<secret>"),
    (re.compile(rf"(?i)({_SIGNATURES}(?:=|%3D))[^\s&\"'<>]+"), r"\1<secret>"),
    (re.compile(r"""(?i)([?&;](?:sig|signature|policy)=)[^\s&"'<>]+"""), r"\1<secret>"),
    (re.compile(r"(?i)(\bsig(?:nature)?=)[\w%+/=~-]{16,}"), r"\1<secret>"),
    (re.compile(rf"""(?i)({NAMES_OF_SECRETS}["']?\s*[=:]\s*["']?){_PLAIN}[^\s"',;&]+"""), r"\1<secret>"),
    (re.compile(rf"""(?i)({_SHORT_NAMES}["']?\s*[=:]\s*["']?){_PATH}(?!<)[^\s"',;&]+"""), r"\1<secret>"),
    # also as a list of arguments: '--token', 'abc'
    (re.compile(rf"""(?i)((?<![\w-])--[\w-]*(?:{NAMES_OF_SECRETS}|{_SHORT_NAMES})["']?,?\s+["']?){_PLAIN}(?!-)[^\s"',\]]+"""),
     r"\1<secret>"),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"), "<mail>"),
    (re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{1,4})?(?:%\w+)?(?![\w:])"),
     _address),
    # after "==", "-" or a word for it, four numbers are a version
    (re.compile(r"(?i)(?<![\w.-])(?<!==)(?<!version )(?<!cudnn )(?<!cublas )(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)"),
     _address),
    (re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"), "<address>"),
    # of numbers alone it may be a date and a time
    (re.compile(r"(?<![\w-])(?=[\d-]{0,16}[A-Fa-f])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w-])"), "<address>"),
)  # fmt: skip

_HOMES = re.compile(r"""(?i)(/home/|/Users/)[^/\\\s'":]+""")
# Names of people, companies and drives may contain spaces here: match up to the next separator, if there is one.
_WINDOWS_HOMES = re.compile(
    r"""(?i)(\b[a-z]:[\\/]+(?:Users|Documents and Settings)[\\/]+)(?:[^\\/":\r\n]+(?=[\\/])|[^\\/\s'":]+)"""
)
_COMPANIES = re.compile(r"""(OneDrive - )[^\\/'":\r\n]+""")
_WINDOWS_SHARES = re.compile(
    r"""(?<![\w:\\])(\\{2}|\\{4})\w[\w.$-]+(\\{1,2})(?:[^\\/":\r\n]{2,}(?=\\)|[^\\/\s'":]{2,})"""
)
# Of up to three words before a slash: more may be prose. Not /mnt/c: there, Windows' own drives have their letters.
_NAME = r"""(?:[^/\s":]+(?: [^/\s":]+){0,2}(?=/)|[^/\s'":]+)"""
_MEDIA = re.compile(rf"(?<![\w.<>-])((?:/run)?/media/){_NAME}(?:(/){_NAME})?")
_DRIVES = re.compile(rf"""(?<![\w.<>-])((?:/mnt|/Volumes)/)(?![a-z](?![^/\s'":])){_NAME}""")


def holds_secret(text: str) -> bool:
    """Whether the text holds a token of a known form, a private key, or an address with a password."""
    return any(pattern.search(text) for pattern, _ in _RULES[:3])


def redact(text: str) -> str:
    """`text` without secrets, mail and network addresses, and the names of the user, the machine, homes and drives."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    home = re.split(r"[\\/]+", str(Path.home()))
    if len(home) > 1 and home[-1]:  # Windows accepts any case and either slash, and messages may escape backslashes
        text = re.sub(r"[\\/]+".join(map(re.escape, home)) + r"(?![\w-])", "~", text, flags=re.IGNORECASE)
    text = _WINDOWS_HOMES.sub(r"\1<user>", _HOMES.sub(r"\1<user>", text))
    text = _COMPANIES.sub(r"\1<company>", text)
    text = _WINDOWS_SHARES.sub(r"\1<machine>\2<drive>", text)
    text = _MEDIA.sub(lambda match: f"{match[1]}<user>" + ("/<drive>" if match[2] else ""), text)
    text = _DRIVES.sub(r"\1<drive>", text)
    for name, stand_in in ((_user(), "<user>"), (socket.gethostname(), "<machine>")):
        if len(name) > 2 and name != "root":  # shorter names and "root" occur everywhere in logs
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stand_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name, or Windows without the variables
        return ""
