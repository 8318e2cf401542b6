"""scripts/examples, as people start them but for fewer epochs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.errors import UserError
from modules.weights.safe import load_tensors
from scripts.examples import distributed_training_example, train_anomaly_detector
from scripts.examples.image_data import load_cifar10, load_digits
from scripts.examples.train_anomaly_detector import Autoencoder, area_under_roc
from tests.support.fork_server import ROOT, ForkedScript
from tests.support.ports import free_port

PATIENCE_SECONDS = 300
RESNET = "distributed_training_example"
DETECTOR = "train_anomaly_detector"


class Examples:
    """Starts examples whose output folder is `folder`; `outputs` has what each has said so far."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._outputs: list[Path] = []

    @property
    def outputs(self) -> list[str]:
        return [path.read_text(encoding="utf-8") for path in self._outputs]

    def start(self, name: str, *options: str, **variables: str) -> ForkedScript:
        left_out = ("SLURM_", "TORCHELASTIC_", "ACCELERATE_", "CHORUS_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
        self._outputs.append(self.folder / f"output-{len(self._outputs)}.txt")
        script = [str(ROOT / "scripts" / "examples" / f"{name}.py"), f"--output-dir={self.folder}", *options]
        return ForkedScript(script, environment, self._outputs[-1])

    def run(self, name: str, *options: str) -> str:
        """What it says. It must succeed."""
        code = self.start(name, *options).wait(PATIENCE_SECONDS)
        assert code == 0, self.outputs[-1]
        return self.outputs[-1]

    def start_pair(self, name: str, *options: list[str]) -> list[ForkedScript]:
        """Two ranks as torchrun starts them. options: of each."""
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = enumerate(options)
        return [self.start(name, *own, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank, own in ranks]


@pytest.fixture
def examples(tmp_path) -> Examples:
    return Examples(tmp_path)


def accuracy(output: str) -> float:
    (found,) = re.findall(r"^Test accuracy: ([\d.]+)%$", output, re.MULTILINE)
    return float(found)


# --- the ResNet -------------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_two_ranks_recognize_the_digits_as_well_as_one(examples, tmp_path):
    alone = accuracy(examples.run(RESNET, "--epochs=10", "--batch-size=128"))
    output = examples.run(RESNET, "--epochs=10", "--distributed", "--world-size=2", f"--output-dir={tmp_path}/two")
    assert "Number of processes: 2" in output
    assert accuracy(output) >= 97
    assert accuracy(output) == pytest.approx(alone, abs=1)  # so early, rounding turns an image or two of the 360


def test_an_option_starts_several_ranks(examples):
    output = examples.run(RESNET, "--epochs=1", "--batch-size=256", "--distributed", "--world-size=2")
    assert "Number of processes: 2" in output
    assert output.count("Test accuracy") == 1


def test_every_option_reaches_the_training_and_an_earlier_one_is_resumed(examples):
    options = ["--batch-size=256", "--use-ema", "--use-amp", "--lr=0.1"]
    assert "lr 0.1" in examples.run(RESNET, "--epochs=1", *options)
    output = examples.run(RESNET, "--epochs=2", *options, "--resume")
    assert "Epoch 1:" not in output
    assert "Epoch 2:" in output
    (checkpoint,) = (examples.folder / "digits" / "checkpoints" / "last").iterdir()
    assert {"model", "training", "ema"} <= {path.stem for path in checkpoint.glob("*.safetensors")}


def test_ranks_that_torchrun_has_started_train_together_and_are_refused_together(examples):
    options = ["--epochs=1", "--batch-size=256"]
    assert [rank.wait(PATIENCE_SECONDS) for rank in examples.start_pair(RESNET, options, options)] == [0, 0]
    assert "Number of processes: 2" in examples.outputs[0]
    assert [output.count("Test accuracy") for output in examples.outputs] == [1, 0]
    codes = [rank.wait(PATIENCE_SECONDS) for rank in examples.start_pair(RESNET, options, options)]
    assert codes[0] == 2
    assert codes[1] != 0  # 1 where rank 0, which holds the store, has ended before rank 1 has read why
    assert "holds checkpoints of an earlier training" in examples.outputs[2]


def test_a_rank_that_is_refused_alone_takes_the_other_along(tmp_path):
    """Processes of their own: a forked one ends without what an interpreter does at its end, where rank 0 waited."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(ROOT / "scripts" / "examples" / f"{RESNET}.py"), f"--output-dir={tmp_path}"]
    refused, other = (
        subprocess.Popen(
            [*command, f"--epochs={rank}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": str(rank), "LOCAL_RANK": str(rank), **shared},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        assert refused.communicate(timeout=PATIENCE_SECONDS)[1].endswith("num_epochs 0: it must be at least 1.\n")
        assert refused.returncode == 2
        other.communicate(timeout=PATIENCE_SECONDS)
        assert other.returncode != 0
    finally:
        refused.kill()
        other.kill()


@pytest.mark.parametrize("parse", [distributed_training_example.parse, train_anomaly_detector.parse])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["--batch-size=0"], "0 is not above 0"), (["--world-size=2"], "--world-size is the number of ranks")],
)
def test_options_that_cannot_be_are_refused_in_a_sentence(parse, options, sentence, capsys):
    with pytest.raises(SystemExit):
        parse(options)
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def write_cifar10(folder: Path, num_images: int) -> np.ndarray:
    """Files as those of CIFAR-10's binary version, of random images; gives all records of the test set."""
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = random.integers(0, 256, (num_images, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    return records


def test_cifar10_is_read_from_its_binary_version(tmp_path, examples):
    records = write_cifar10(tmp_path, 4)
    train, test = load_cifar10(tmp_path)
    assert (len(train), len(test)) == (20, 4)
    image_CHW, label = test[3]
    assert label == records[3, 0]
    assert image_CHW[1, 2, 5] == pytest.approx(records[3, 1 + 1024 + 2 * 32 + 5] / 255)
    assert "Test accuracy" in examples.run(RESNET, f"--data={tmp_path}", "--epochs=1", "--batch-size=10")


def test_what_is_not_cifar10_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data_batch_1\.bin can't be read"):
        load_cifar10(tmp_path)
    write_cifar10(tmp_path, 2)
    with (tmp_path / "test_batch.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match=r"test_batch\.bin is not a file of CIFAR-10's binary version"):
        load_cifar10(tmp_path)


def test_the_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    expected = datasets.load_digits()
    images, labels = load_digits()[1].tensors
    assert torch.equal(images[:, 0] * 16, torch.from_numpy(expected.images[::5]).float())
    assert labels.tolist() == expected.target[::5].tolist()


# --- the anomaly detector ---------------------------------------------------------------------------------------------


def aucs(output: str) -> dict[str, float]:
    found = re.findall(r"^(\w+): AUC ([\d.]+) for the digit", output, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.proof
def test_digits_of_a_kind_never_seen_are_found(examples):
    found = aucs(examples.run(DETECTOR, "--epochs=40"))
    assert found["full"] >= 0.95
    assert found["compressed"] >= 0.9  # after the 100 epochs of the default it is as good
    with Image.open(examples.folder / "reconstructions.png") as grid:
        assert grid.width > 16 * 8 * 4


def test_accelerate_trains_the_detector_further_on_two_ranks(examples):
    """In its precision and with its accumulation; the checkpoints are those of one device."""
    examples.run(DETECTOR, "--epochs=1")
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / "resources" / "accelerate_config.yaml"), "--mixed_precision", "bf16"]
    command += ["--gradient_accumulation_steps", "3", str(ROOT / "scripts" / "examples" / f"{DETECTOR}.py")]
    command += ["--resume", "--epochs=2", f"--output-dir={examples.folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith(("Epoch", "full", "compressed"))][:5] == [
        "Distributed training: MULTI_CPU",
        "Number of processes: 2",
        "Mixed precision: bf16",
        "Process 0 using device: cpu",
        "Process 1 using device: cpu",
    ]
    assert "Epoch 1:" not in done.stdout
    (checkpoint,) = (examples.folder / "anomaly_0_compressed" / "checkpoints" / "last").iterdir()
    num_normal = sum(label != 0 for _, label in load_digits()[0])
    steps = -(-num_normal // 128) + -(-num_normal // (128 * 2 * 3))
    assert checkpoint.name == f"step-{steps:09d}"
    Autoencoder(width=8).load_state_dict(load_tensors(checkpoint / "model.safetensors"))


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    scores = torch.tensor([0.1, 0.4, 0.35, 0.8, 0.4, 0.2])
    is_anomaly = torch.tensor([False, False, True, True, True, False])
    expected = metrics.roc_auc_score(is_anomaly.numpy(), scores.numpy())
    assert area_under_roc(scores, is_anomaly) == pytest.approx(expected)
