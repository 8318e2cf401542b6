"""What is known to break on Windows, macOS or another device is not written again, as far as text can show it.

tests/support/portability.py holds the rules. Where one finds what is right after all, ALLOWED says why.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.portability import RULES, look_at

ROOT = Path(__file__).resolve().parents[1]

# Scripts are for people at a terminal; those that rename files are set-up, which runs without modules, and makers of
# what ships, which nobody reads meanwhile.
LOOKED_AT = {
    "only_on_some_systems": ("modules", "scripts"),
    "without_encoding": ("modules", "scripts"),
    "unprintable": ("scripts",),
    "impatient": ("modules",),
    "one_device": ("modules", "scripts"),
}

OWNS_DEVICES = "this room owns which devices there are and how ranks use them"
PICKS_BY_DEVICE = "asks for the device that it was given, and has another way for the others"

# (path, or folder with a slash at its end, and word of the rule) -> why it is right there.
ALLOWED = {
    ("modules/launch/accelerate.py", "os.getppid"): "where there is no /proc the question has no answer",
    ("modules/launch/join.py", "os.getppid"): "its number alone, for wait_for_end_of",
    ("modules/launch/parent_watch.py", "os.getppid"): "looks for the process itself where os.name is nt",
    ("modules/session/signals.py", "signal.pthread_sigmask"): "returns before it where there are no signals to block",
    ("modules/launch/supervise.py", "shutil.rmtree"): "of a temporary, which the next start sweeps otherwise",
    ("modules/machine/interfaces.py", "import fcntl"): "called on Linux alone, as its docstring says",
    ("modules/machine/doctor/known_problems.py", "os.statvfs"): "below a question for /dev/shm",
    ("modules/session/file_lock.py", "import msvcrt"): "called where os.name is nt",
    ("modules/session/atomic.py", "ctypes.WinDLL"): "called where os.name is nt",
    ("modules/machine/keep_awake.py", "ctypes.WinDLL"): "called where sys.platform is win32",
    ("modules/data/TensorCache.py", "Path.unlink"): "of a temporary that nobody else knows",
    ("modules/config/atomic_file.py", "Path.unlink"): "of temporaries, which the next sweep removes otherwise",
    ("modules/config/atomic_file.py", "shutil.rmtree"): "of temporaries, which the next sweep removes otherwise",
    ("modules/trainer/compile_cache.py", "Path.rename"): "what Windows does not rename is in use, and stays for that",
    ("modules/trainer/compile_cache.py", "shutil.rmtree"): "of what no longer has its name, which the next run removes",
    ("modules/trainer/FallbackFolders.py", "Path.rmdir"): "of an empty folder, which is only untidy if it stays",
    ("modules/distributed/", "torch.cuda"): OWNS_DEVICES,
    ("modules/distributed/", '"cuda"'): OWNS_DEVICES,
    ("modules/distributed/", '"cuda:"'): OWNS_DEVICES,
    ("modules/machine/doctor/hardware.py", '"cuda"'): "a name in a record, not a device",
    ("modules/machine/devices.py", '"cuda"'): "what is_gpu compares with, for all who pick by the device",
    ("modules/engine/worker.py", '"cuda"'): PICKS_BY_DEVICE,
    ("modules/ui/cards/RankBars.py", '"cuda"'): "a name that a rank has recorded, not a device",
    ("scripts/benchmarks/engine_task.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("scripts/benchmarks/engine_task.py", '"cuda"'): PICKS_BY_DEVICE,
    ("scripts/benchmarks/engine_chorus.py", '"cuda"'): PICKS_BY_DEVICE,
    ("scripts/benchmarks/engine_hand.py", '"cuda"'): "a program that is compared, as people write it",
    ("modules/engine/Float32Precision.py", "torch.cuda"): "a setting of torch.backends, which a CPU does not mind",
    ("modules/trainer/GenericTrainer.py", "torch.cuda"): "a setting of torch.backends, which a CPU does not mind",
    ("modules/trainer/CudaCapture.py", "torch.cuda"): "made for such devices alone, by capturing.py",
    ("modules/trainer/LateReport.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("modules/trainer/MemoryReading.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("modules/trainer/checks.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("modules/trainer/compiling.py", '"cuda"'): PICKS_BY_DEVICE,
    ("modules/layers/checkpoints.py", "torch.cuda"): "asks whether it is used, and has another way where it isn't",
    ("modules/layers/dequantize.py", '"cuda"'): PICKS_BY_DEVICE,
    ("modules/layers/quantized_matmul.py", '"cuda"'): PICKS_BY_DEVICE,
    ("modules/layers/quantized_matmul.py", "torch.cuda"): "asks such a device for its capability",
    ("modules/layers/triton_dequantize.py", "torch.cuda"): "called for weights on such a device alone",
    ("modules/layers/device_memory.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("modules/layers/PinnedMemory.py", "torch.cuda"): "called for copies to such a device alone, by transfers.py",
    ("modules/layers/transfers.py", "torch.cuda"): PICKS_BY_DEVICE,
    ("modules/weights/load_pipeline.py", '"cuda"'): PICKS_BY_DEVICE,
    ("scripts/train_distributed.py", "torch.cuda"): "counts what torchrun will give to ranks",
    ("scripts/gpu/", "torch.cuda"): "checks of GPUs, which are skipped or have another way where there is none",
    ("scripts/gpu/", '"cuda"'): PICKS_BY_DEVICE,
    ("scripts/gpu_tests.py", '"cuda:0"'): "a choice beside the CPU",
    ("scripts/gpu_tests.py", "torch.cuda"): "asks whether there is a GPU to test",
    ("scripts/benchmarks/caching_hand.py", "torch.cuda"): "the plain loop that Chorus is compared with",
    ("scripts/benchmarks/caching_hand.py", '"cuda"'): "the plain loop that Chorus is compared with",
    ("scripts/benchmarks/registry.py", '"cuda"'): "a choice beside the CPU",
    ("scripts/benchmarks/reference_loop.py", "torch.cuda"): "the plain loop that Chorus is compared with",
    ("scripts/benchmarks/reference_loop.py", '"cuda"'): "the plain loop that Chorus is compared with",
}


def reason(path: str, word: str) -> tuple[str, str] | None:
    """The entry of ALLOWED for it."""
    entries = [entry for entry in ALLOWED if entry[1] == word]
    return next(
        (entry for entry in entries if path == entry[0] or (entry[0][-1] == "/" and path.startswith(entry[0]))), None
    )


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str, int, str]]:
    """(path, rule, line, word) of all that the rules find in Chorus."""
    everything = []
    for folder in ("modules", "scripts"):
        rules = {name: rule for name, rule in RULES.items() if folder in LOOKED_AT[name]}
        for path in sorted((ROOT / folder).rglob("*.py")):
            everything += [(path.relative_to(ROOT).as_posix(), *hit) for hit in look_at(path, rules)]
    return everything


def test_what_breaks_on_other_systems_or_devices_is_not_there_without_a_reason(found):
    unexplained = [f"{path}:{line}: {word} ({rule})" for path, rule, line, word in found if not reason(path, word)]
    assert not unexplained, "mend them, or say in ALLOWED why they are right"


def test_every_reason_is_still_needed(found):
    assert ALLOWED.keys() - {reason(path, word) for path, _, _, word in found} == set()


@pytest.mark.parametrize(
    ("rule", "code", "word"),
    [
        ("only_on_some_systems", "import os\nos.fork()", "os.fork"),
        ("only_on_some_systems", "while os.getppid() == parent:\n    wait()", "os.getppid"),
        ("only_on_some_systems", "def f():\n    import fcntl", "import fcntl"),
        ("only_on_some_systems", "from resource import getrusage", "import resource"),
        ("only_on_some_systems", "os.kill(pid, signal.SIGKILL)", "signal.SIGKILL"),
        ("only_on_some_systems", "signal.signal(signal.SIGUSR1, stop)", "signal.SIGUSR1"),
        ("only_on_some_systems", "os.kill(pid, 0)", "os.kill(pid, 0)"),
        ("only_on_some_systems", "Popen(command, preexec_fn=os.setsid)", "preexec_fn"),
        ("only_on_some_systems", "ctypes.windll.kernel32", "ctypes.windll"),
        ("without_encoding", "open(path)", "open"),
        ("without_encoding", "open(path, 'w')", "open"),
        ("without_encoding", "path.open('a', buffering=1)", "Path.open"),
        ("without_encoding", "path.open()", "Path.open"),
        ("without_encoding", "path.read_text()", "read_text"),
        ("without_encoding", "path.write_text(text, newline='')", "write_text"),
        ("without_encoding", "subprocess.Popen(command, text=True)", "subprocess.Popen"),
        ("unprintable", "print('→ done')", "→"),
        ("impatient", "os.replace(temporary, path)", "os.replace"),
        ("impatient", "path.unlink(missing_ok=True)", "Path.unlink"),
        ("impatient", "path.rename(other)", "Path.rename"),
        ("impatient", "shutil.rmtree(folder)", "shutil.rmtree"),
        ("one_device", "torch.cuda.synchronize()", "torch.cuda"),
        ("one_device", "model.cuda()", ".cuda()"),
        ("one_device", "tensor.to('cuda')", '"cuda"'),
        ("one_device", "torch.device('cuda:0')", '"cuda:0"'),
    ],
)
def test_a_planted_mistake_is_found(rule, code, word):
    assert word in [found for _, found in RULES[rule](ast.parse(code))]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("only_on_some_systems", "if os.name == 'posix':\n    os.fork()"),
        ("only_on_some_systems", "if sys.platform == 'win32':\n    pass\nelse:\n    import fcntl"),
        ("only_on_some_systems", "def f():\n    if os.name == 'nt':\n        return\n    os.kill(pid, 0)"),
        ("only_on_some_systems", "x = (signal.SIGUSR1,) if hasattr(signal, 'SIGUSR1') else ()"),
        ("only_on_some_systems", "getattr(signal, 'SIGKILL', signal.SIGTERM)"),
        ("only_on_some_systems", "signal.signal(signal.SIGINT, signal.SIG_IGN)"),
        ("without_encoding", "open(path, 'rb'), path.open('xb'), path.read_bytes(), Image.open(path)"),
        ("without_encoding", "open(path, encoding='utf-8'), subprocess.run(command, encoding='utf-8')"),
        ("unprintable", "print('füchse …')"),
        ("unprintable", "escape_unprintable()\nprint('→')"),
        ("impatient", "retry_busy(lambda: os.replace(temporary, path)), text.replace('a', 'b')"),
        ("one_device", "tensor.to(self.device), torch.device(name), config.cuda"),
    ],
)
def test_what_is_right_is_left_alone(rule, code):
    assert list(RULES[rule](ast.parse(code))) == []
