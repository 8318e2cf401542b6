from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.session.StepInfo import StepInfo

STAND_INS = Path(__file__).parents[1] / "support" / "stand_ins"


@pytest.fixture
def services(monkeypatch):
    """The stand-ins for wandb and mlflow, with somebody logged in."""
    import sys

    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.setenv("WANDB_API_KEY", "of-nobody")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("wandb", "mlflow")]:
        del sys.modules[name]


@pytest.fixture
def step_info():
    def make(step, **changes):
        values = {
            "epoch": 1, "steps_total": 9, "loss": 1 / step, "smooth_loss": 1.0, "lr": 1e-4, "samples": 4,
            "seconds": 0.5, "grad_norm": 1.0, "metrics": {"lr/unet": 1e-4}, "memory_bytes": 2**30,
        }  # fmt: skip
        return StepInfo(step=step, **{**values, **changes})

    return make


@pytest.fixture
def samples(tmp_path):
    """A folder with an image and a video, generated from prompts."""
    folder = tmp_path / "samples"
    folder.mkdir()
    for name in ("000_a cat", "001_a dog"):
        info = PngInfo()
        info.add_text("prompt", f"{name[4:]}, sitting")
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png", pnginfo=info)
    (folder / "001_a dog.mp4").write_bytes(b"")
    return folder
