import errno
import os
import socket
import subprocess
import sys
import threading

import pytest

from modules.config.errors import UserError
from modules.session import RunLock as module
from modules.session import file_lock
from modules.session.RunLock import RunLock, holder_here, is_held

HOLDER = """
import sys
from modules.session.RunLock import RunLock
with RunLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""

HOLDER_WITH_CHILD = """
import subprocess, sys
from modules.session.RunLock import RunLock
with RunLock(sys.argv[1]):
    child = "import sys; print('the child runs', flush=True); sys.stdin.read(); print('the child ends')"
    subprocess.run([sys.executable, "-c", child], close_fds=False)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.lock"


@pytest.fixture
def holder(path):
    """Another process that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_holder_is_told_the_folder_and_the_process(path, holder):
    with pytest.raises(UserError) as caught, RunLock(path):
        pass
    assert str(caught.value) == (
        f"workspace_dir {str(path.parent)!r} is in use by another run (process {holder.pid}): "
        "stop it, or choose another folder."
    )


def test_a_killed_holder_frees_the_lock(path, holder):
    holder.kill()
    holder.wait()
    with RunLock(path):
        assert path.read_text() == f"{os.getpid()} {socket.gethostname()}\n"


def test_the_lock_is_free_after_the_block_even_if_it_raised(path):
    with pytest.raises(KeyError), RunLock(path):
        raise KeyError
    with RunLock(path):
        pass


def test_one_process_can_not_hold_it_twice(path):
    with RunLock(path), pytest.raises(UserError, match="in use"), RunLock(path):
        pass


def test_a_process_that_the_holder_has_started_does_not_inherit_the_lock(path):
    command = [sys.executable, "-c", HOLDER_WITH_CHILD, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "the child runs\n"
    holder.kill()
    holder.wait()
    with RunLock(path):
        pass
    assert holder.communicate()[0] == "the child ends\n"  # it has read to the end of what is closed only now


def test_a_disk_without_locks_is_used_without(path, monkeypatch):
    def refuse(file, shared=False):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock, "lock", refuse)
    with RunLock(path):
        assert path.read_text() == f"{os.getpid()} {socket.gethostname()}\n"


def test_any_other_error_of_the_disk_is_not_hidden(path, monkeypatch):
    def refuse(file, shared=False):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_lock, "lock", refuse)
    with pytest.raises(OSError, match="Input/output"), RunLock(path):
        pass


def test_others_can_see_who_holds_it(path, holder):
    assert is_held(path) is True
    assert holder_here(path) == holder.pid
    holder.kill()
    holder.wait()
    assert is_held(path) is False
    assert holder_here(path) is None


def test_a_folder_that_was_never_used_is_free(path):
    assert is_held(path) is False
    assert not path.exists()


def test_a_process_of_another_machine_is_not_taken_for_one_of_this(path, monkeypatch):
    with RunLock(path):
        monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")
        assert holder_here(path) is None
        with pytest.raises(UserError, match=f"process {os.getpid()} on "), RunLock(path):
            pass


def test_who_only_looks_does_not_keep_a_run_from_starting(path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 60.0)
    with RunLock(path):
        pass
    with path.open("rb", buffering=0) as looking:
        file_lock.lock(looking, shared=True)
        threading.Timer(0.1, file_lock.unlock, [looking]).start()
        with RunLock(path):
            pass


def test_a_disk_without_locks_can_not_tell(path, monkeypatch):
    def refuse(file, shared=False):
        raise OSError(errno.ENOLCK, "No locks available")

    path.touch()
    monkeypatch.setattr(file_lock, "lock", refuse)
    assert is_held(path) is None
    assert holder_here(path) is None
