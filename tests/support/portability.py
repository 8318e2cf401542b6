"""What breaks on another system or another device, as far as the text of a Python file shows it.

Each rule is a function that gives the (line, word) of what it finds in a syntax tree; RULES holds them by name. A word
names the construct and is the same for the same one: a test can say of it why it is right where it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

Found = Iterator[tuple[int, str]]

# Missing on Windows, or other than its name says there.
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"}
WINDOWS_MODULES = {"msvcrt", "winreg", "_winapi"}
POSIX_CALLS = {
    "os.fork", "os.forkpty", "os.getppid", "os.setsid", "os.getpgid", "os.killpg", "os.getuid", "os.geteuid", "os.nice",
    "os.uname", "os.mkfifo", "os.sched_getaffinity", "os.statvfs", "os.posix_fadvise", "os.getloadavg", "os.execv",
    "os.execvp", "os.WNOHANG", "os.waitpid", "signal.pthread_sigmask", "signal.pause", "signal.alarm", "select.poll",
}  # fmt: skip
POSIX_SIGNALS = re.compile(r"signal\.SIG(?!INT$|TERM$|_|ABRT$|FPE$|ILL$|SEGV$|nals)[A-Z0-9]+")
WINDOWS_CALLS = {"ctypes.windll", "ctypes.WinDLL", "os.startfile", "signal.SIGBREAK", "signal.CTRL_BREAK_EVENT"}
GUARD = re.compile(r"\bos\.name\b|\bsys\.platform\b|\bhasattr\(|\bplatform\b|_WINDOWS\b")

CHANGES_OF_NAMES = {
    "os.rename", "os.renames", "os.replace", "os.remove", "os.unlink", "os.rmdir", "shutil.move", "shutil.rmtree"
}  # fmt: skip
PATH_CHANGES = {"unlink", "rename", "rmdir"}
PATIENT = "retry_busy"

TEXT_CALLS = {
    "subprocess.Popen",
    "subprocess.run",
    "subprocess.check_output",
    "subprocess.call",
    "subprocess.getoutput",
}
CONSOLE = "cp1252"


def only_on_some_systems(tree: ast.Module) -> Found:
    """Calls that Windows or others lack, outside a condition that asks for the system or for the call itself."""
    parents = _parents(tree)
    for node in ast.walk(tree):
        word = _word(node)
        if word and not _is_guarded(node, parents):
            yield node.lineno, word


def without_encoding(tree: ast.Module) -> Found:
    """Text that is read or written in the encoding of the system, which on Windows is not UTF-8."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(keyword.arg in ("encoding", None) for keyword in node.keywords):
            continue
        name = _dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        mode = options.get("mode") or next(iter(node.args[1:2] if name == "open" else node.args[:1]), None)
        if name == "open" and _is_text(mode):
            yield node.lineno, "open"
        elif method == "open" and (_is_mode(mode) or not (node.args or node.keywords)) and _is_text(mode):
            yield node.lineno, "Path.open"
        elif method == "read_text" and not node.args:
            yield node.lineno, "read_text"
        elif method == "write_text" and len(node.args) < 2:
            yield node.lineno, "write_text"
        elif name in TEXT_CALLS and {"text", "universal_newlines"} & options.keys():
            yield node.lineno, name


def unprintable(tree: ast.Module) -> Found:
    """Characters that a console of Windows can't show, in texts of a script that does not make its stdout safe."""
    if any(isinstance(node, ast.Name) and node.id == "escape_unprintable" for node in ast.walk(tree)):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            bad = [character for character in node.value if not _is_in(character, CONSOLE)]
            if bad:
                yield node.lineno, bad[0]


def impatient(tree: ast.Module) -> Found:
    """Files that are renamed, replaced or deleted as if nobody could have them open, outside `retry_busy`."""
    parents = _parents(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or _is_patient(node, parents):
            continue
        name = _dotted(node)
        if name in CHANGES_OF_NAMES:
            yield node.lineno, name
        elif node.attr in PATH_CHANGES and isinstance(parents[node], ast.Call) and not name.startswith("os."):
            yield node.lineno, f"Path.{node.attr}"


def one_device(tree: ast.Module) -> Found:
    """Calls and names of CUDA: another device would have to be thought of at each of them."""
    parents = _parents(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(parents[node], ast.Attribute):
            name = _dotted(node)
            if name.startswith(("torch.cuda", "torch.backends.cuda", "torch.backends.cudnn", "torch.version.cuda")):
                yield node.lineno, "torch.cuda"
            elif node.attr == "cuda" and isinstance(parents[node], ast.Call):
                yield node.lineno, ".cuda()"
        elif isinstance(node, ast.Constant) and re.fullmatch(r"cuda(:\d*)?", str(node.value)):
            yield node.lineno, f'"{node.value}"'


RULES: dict[str, Callable[[ast.Module], Found]] = {
    rule.__name__: rule for rule in (only_on_some_systems, without_encoding, unprintable, impatient, one_device)
}


def look_at(path: Path, rules: dict[str, Callable[[ast.Module], Found]]) -> Iterator[tuple[str, int, str]]:
    """(rule, line, word) of all that `rules` find in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, rule in rules.items():
        yield from ((name, line, word) for line, word in sorted(set(rule(tree))))


def _word(node: ast.AST) -> str:
    name = _dotted(node) if isinstance(node, ast.Attribute) else ""
    if name in POSIX_CALLS | WINDOWS_CALLS or POSIX_SIGNALS.fullmatch(name):
        return name
    imported = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {getattr(node, "module", "")}
    if found := imported & (POSIX_MODULES | WINDOWS_MODULES):
        return f"import {min(found)}"
    if isinstance(node, ast.keyword) and node.arg == "preexec_fn":
        return "preexec_fn"
    if isinstance(node, ast.Call) and _dotted(node.func) == "os.kill" and _is_zero(node.args[1:]):
        return "os.kill(pid, 0)"  # a question on POSIX, and Ctrl-C on Windows
    return ""


def _parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _dotted(node: ast.AST) -> str:
    """The expression as it is written, such as os.path.join; "" if it is of another kind."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := _dotted(node.value)) else ""
    return ""


def _is_guarded(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether what is around it, or a way out above it in the same block, asks for the system."""
    while (parent := parents.get(node)) is not None:
        if (
            isinstance(parent, (ast.If, ast.IfExp))
            and node is not parent.test
            and GUARD.search(ast.unparse(parent.test))
        ):
            return True
        if isinstance(parent, ast.BoolOp) and GUARD.search(ast.unparse(parent)):
            return True
        for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and node in block and any(map(_is_way_out, block[: block.index(node)])):
                return True
        node = parent
    return False


def _is_way_out(statement: ast.AST) -> bool:
    if not isinstance(statement, ast.If) or not GUARD.search(ast.unparse(statement.test)):
        return False
    return isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue))


def _is_patient(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while (node := parents.get(node)) is not None:
        if isinstance(node, ast.Call) and _dotted(node.func).endswith(PATIENT):
            return True
    return False


def _is_zero(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def _is_mode(node: ast.expr | None) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(re.fullmatch("[rwxabt+]{1,4}", node.value))
    )


def _is_text(mode: ast.expr | None) -> bool:
    return mode is None or (isinstance(mode, ast.Constant) and "b" not in str(mode.value))


def _is_in(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
