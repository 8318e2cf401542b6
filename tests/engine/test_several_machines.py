"""A program of one's own on two machines: here two folders, which stand for their disks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from modules.config.errors import UserError
from modules.trainer import TrainingEngine, multi_node_commands
from tests.support.fork_server import ROOT, ForkedScript
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from modules.trainer import TrainingEngine

torch.manual_seed(0)
inputs = torch.rand(32, 4)
model = torch.nn.Linear(4, 1)
engine = TrainingEngine(model, distributed=True)
engine.train(
    DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4),
    optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
    criterion=torch.nn.MSELoss(),
    num_epochs=int(sys.argv[1]),
    resume=sys.argv[1] == "2",
)
TrainingEngine.cleanup_distributed()
"""


@pytest.fixture
def machines(tmp_path) -> list[Path]:
    found = [tmp_path / "machine 0", tmp_path / "machine 1"]
    for folder in found:
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
    return found


def history(folder: Path) -> list[float]:
    return json.loads((folder / "runs" / "experiment" / "history.json").read_text())["values"]["train_loss"]


def on_one_rank(folder: Path) -> list[float]:
    torch.manual_seed(0)
    inputs = torch.rand(32, 4)
    model = torch.nn.Linear(4, 1)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    engine = TrainingEngine(model, output_dir=folder, device="cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return engine.train(data, optimizer=optimizer, criterion=torch.nn.MSELoss(), num_epochs=2)["train_loss"]


@pytest.mark.skipif(os.name == "nt", reason="the commands are run by bash")
def test_machines_train_by_the_written_commands_and_resume_by_srun_from_the_disk_of_machine_0(machines, tmp_path):
    options = {"arguments": ["1"], "master_port": free_port(), "shell": "bash"}
    lines = [
        multi_node_commands("program.py", 2, 1, "127.0.0.1", folder=folder, **options)[number]
        for number, folder in enumerate(machines)
    ]
    shutil.copy(machines[0] / "program.py.token", machines[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    nodes = [subprocess.Popen(["bash", "-c", line], env=environment, cwd=tmp_path, **output) for line in lines]
    said = [node.communicate(timeout=PATIENCE_SECONDS)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "CHORUS_TOKEN is not set" not in said[0]
    assert not (machines[1] / "runs").exists()

    shared = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_LOCALID": "0"}
    shared |= {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NODELIST": "node[1-2]", "PYTHONPATH": str(ROOT)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank, folder in enumerate(machines):
        own = environment | shared | {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)}
        ranks.append(ForkedScript([str(folder / "program.py"), "2"], own, folder / "output.txt", folder))
    assert [rank.wait(PATIENCE_SECONDS) for rank in ranks] == [0, 0], (machines[1] / "output.txt").read_text()
    assert history(machines[0]) == pytest.approx(on_one_rank(tmp_path), rel=1e-5)
    assert list((machines[1] / "runs" / "experiment" / "checkpoints" / "last").iterdir()) == []


def test_the_commands_name_program_arguments_and_interface(tmp_path):
    options = {"arguments": ["--name=two words"], "interface": "eth7", "python": "/opt/python", "folder": tmp_path}
    first, second = multi_node_commands("train.py", 2, 8, "10.0.0.1", master_port=29500, shell="bash", **options)
    run = "-m torch.distributed.run --nnodes=2 --node-rank=1 --nproc-per-node=8 --master-addr=10.0.0.1 "
    assert second.endswith(f"{run}--master-port=29500 train.py '--name=two words'")
    assert "NCCL_SOCKET_IFNAME=eth7" in second
    assert first.replace("--node-rank=0", "--node-rank=1") == second
    (line,) = multi_node_commands("train.py", 1, 2, shell="powershell", folder=tmp_path)
    assert "'--nproc-per-node=2'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["train.py.token"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"master_addr": "a b"}, "master_addr 'a b': it is not a host name or IP address"),
        ({"master_addr": ""}, "master_addr '': it is not a host name or IP address"),
        ({"num_nodes": 0}, "num_nodes 0: it must be at least 1"),
        ({"folder": "work"}, "folder 'work' is not a whole path"),
        ({"arguments": ["a\nb"]}, "arguments has a character that can't be seen"),
        ({"shell": "fish"}, "shell 'fish': it must be bash or powershell"),
    ],
)
def test_what_no_command_can_say_is_refused_in_a_sentence(change, sentence, tmp_path):
    values = {"num_nodes": 2, "processes_per_node": 1, "master_addr": "10.0.0.1", "folder": tmp_path, **change}
    with pytest.raises(UserError, match=f"^{sentence}"):
        multi_node_commands("train.py", **values)
    assert list(tmp_path.iterdir()) == []
