"""Write the table of docs/multi_gpu.md on what listens where, seen of a short run by every way to start, or check it.

python scripts/listening.py --write
python scripts/listening.py --check

Takes some minutes on CPUs, on Linux; so it is none of those that scripts/generate.py runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.machine.listening import is_open, listening_sockets  # noqa: E402
from modules.machine.ports import next_free_port  # noqa: E402
from modules.session.printing import print_line  # noqa: E402

PAGE = ROOT / "docs" / "multi_gpu.md"
BEGIN, END = "<!-- ports: made by scripts/listening.py -->\n", "<!-- end of ports -->\n"
LOOK_SECONDS = 0.1
LIMIT_SECONDS = 600.0

Sockets = set[tuple[str, int]]  # addresses and ports

PYTHON = (sys.executable,)
TRAIN = (*PYTHON, "scripts/train.py")
TORCHRUN = (*PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2")
AGENT = (*PYTHON, "scripts/elastic_agent.py", "--nproc-per-node=2")
RANKS = ("scripts/train.py", "--multi_gpu")
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
SLURM |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
TENSORBOARD = """
import sys, time
from pathlib import Path
from modules.ui.models.TensorBoard import TensorBoard
server = TensorBoard()
server.start(Path(sys.argv[1]))
time.sleep(1)
server.stop()
"""


@dataclass(frozen=True)
class Way:
    """A way to start on one machine, here with two ranks on the CPU.

    name: in the table. command: {folder} and {port} are filled in. trains: whether the settings of a run are added.
    port: what the table calls the port that has been set. variables: for the environment. tasks: how many processes
    SLURM would start.
    """

    name: str
    command: tuple[str, ...]
    trains: bool = True
    port: str = "`initial_port`"
    variables: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1


WAYS = {
    "alone": Way("one device: `train.py`", (*TRAIN, "--set=enable_multi_gpu=false")),
    "own torchrun": Way(
        "`start-multi-gpu.sh`, `train.py --multi_gpu`, the window's command",
        (*TRAIN, "--set=use_torchrun=true", "--world_size=2"),
    ),
    "spawn": Way(
        "the window's Start, `train.py --multi_gpu --no_torchrun`", (*TRAIN, "--no_torchrun", "--world_size=2")
    ),
    "agent": Way("`train_distributed.sh`, `elastic_agent.py`", (*AGENT, *RANKS)),
    "launch": Way(
        "`launch_distributed_training`",
        (
            *(*PYTHON, "scripts/examples/distributed_training_example.py", "--distributed", "--world-size=2"),
            *("--epochs=2", "--output-dir={folder}"),
        ),
        trains=False,
    ),
    "probe": Way(
        "**Test communication**, `doctor.py`",
        (*PYTHON, "-m", "modules.distributed.probe", "--world-size=2", "--megabytes=1", "--seconds=1"),
        trains=False,
    ),
    "TensorBoard": Way("TensorBoard, opened in the window", (*PYTHON, "-c", TENSORBOARD, "{folder}"), trains=False),
    "slurm": Way(
        "`srun` on one machine",
        (*TRAIN, "--multi_gpu"),
        port="`MASTER_PORT`",
        variables={**SLURM, "MASTER_PORT": "{port}"},
        tasks=2,
    ),
    "torchrun": Way("`torchrun --master_port=N`", (*TORCHRUN, "--master-port={port}", *RANKS), port="N"),
    "c10d": Way("`torchrun`, also with `--standalone`", (*TORCHRUN, *RANKS)),
    "distributed.launch": Way(
        "`python -m torch.distributed.launch`",
        (*PYTHON, "-m", "torch.distributed.launch", "--nproc-per-node=2", *RANKS),
    ),
    "accelerate": Way(
        "`accelerate launch`",
        (*PYTHON, "-m", "accelerate.commands.launch", "--config_file=resources/accelerate_config.yaml", *RANKS),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the table into docs/multi_gpu.md")
    action.add_argument("--check", action="store_true", help="exit with 1 if it is out of date")
    args = parser.parse_args()
    text = page(PAGE.read_text(encoding="utf-8"), measured_table())
    if args.write:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    return int(PAGE.read_text(encoding="utf-8") != text)


def page(text: str, table: str) -> str:
    """The page `text` with this table in place of its own."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def measured_table() -> str:
    lines = ["| started by | only this machine can connect to | all machines can connect to |", "|---|---|---|"]
    for way in WAYS.values():
        print_line(way.name, sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            port = next_free_port(23456)
            assert port is not None
            lines.append(row(way, sockets_of(way, Path(folder), port), port))
    return "\n".join(lines) + "\n"


def row(way: Way, sockets: Sockets, port: int) -> str:
    """What was seen of a way, as the table has it. port: the one that has been set."""
    inner = {number for address, number in sockets if not is_open(address)}
    outer = {number for address, number in sockets if is_open(address)}
    return f"| {way.name} | {_described(inner, port, way.port)} | {_described(outer, port, way.port, counted=True)} |"


def _described(ports: set[int], port: int, name: str, counted: bool = False) -> str:
    others = len(ports - {port})
    parts = [name] if port in ports else []
    if others:
        parts.append(f"{others} free port{'s' if others > 1 else ''}" if counted else "free ports")
    return " and ".join(parts) or "nothing"


def sockets_of(way: Way, folder: Path, port: int) -> Sockets:
    """All that the processes of this way listen on from its start to its end. Raises RuntimeError if it fails."""
    (folder / "curves").touch()
    fill = {"{folder}": str(folder), "{port}": str(port)}
    arguments = _settings(folder, port) if way.trains else []
    command = [_filled(word, fill) for word in way.command] + arguments
    variables = {name: _filled(value, fill) for name, value in way.variables.items()}
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), **variables}
    with tempfile.TemporaryFile("w+") as output:
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=env if way.tasks == 1 else {**env, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for task in range(way.tasks)
        ]
        sockets = _watched(processes)
        if any(process.returncode for process in processes):
            output.seek(0)
            raise RuntimeError(f"{way.name} has failed:\n{output.read()}")
    return sockets


def _filled(word: str, fill: Mapping[str, str]) -> str:
    for place, value in fill.items():
        word = word.replace(place, value)
    return word


def _settings(folder: Path, port: int) -> list[str]:
    pictures = folder / "pictures"
    pictures.mkdir()
    for number, image in enumerate(sorted((ROOT / "resources" / "demo" / "pictures").glob("*.png"))[:8]):
        shutil.copy(image, pictures / f"{number}.png")
        (pictures / f"{number}.txt").write_text("a handwritten digit", encoding="utf-8")
    changes = [f"concepts=[{{path: {pictures}}}]", "sampling.samples=[]", "max_steps=3", "batch_size=4"]
    changes += [f"workspace_dir={folder / 'run'}", f"cache_dir={folder / 'cache'}", f"initial_port={port}"]
    return ["--preset=demo", *(f"--set={change}" for change in changes)]


def _watched(processes: Iterable[subprocess.Popen]) -> Sockets:
    """What they and all below them listen on until they end."""
    import psutil

    sockets: Sockets = set()
    deadline = time.monotonic() + LIMIT_SECONDS
    while None in [process.poll() for process in processes]:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                for one in (process, *psutil.Process(process.pid).children(recursive=True)):
                    sockets |= listening_sockets(one.pid)
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(LOOK_SECONDS)
    return sockets


if __name__ == "__main__":
    sys.exit(main())
