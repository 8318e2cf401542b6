"""What a start of a training imports: each of these packages takes from a tenth of a second to several seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import call_forked

# Of those that are installed here, and of those that transformers, diffusers and PEFT import where they are
NOT_NEEDED = (
    *("bitsandbytes", "datasets", "IPython", "librosa", "lightning_fabric", "lycoris", "matplotlib", "mlflow"),
    *("networkx", "numba", "onnx", "onnxruntime", "pandas", "prodigyopt", "pytorch_optimizer", "pytorch_lightning"),
    *("scipy.integrate", "scipy.optimize", "scipy.stats", "sklearn", "soundfile", "tensorflow", "timm", "torchaudio"),
    *("torchvision", "triton", "wandb", "xformers", "torch._inductor.compile_fx", "torch._inductor.lowering"),
    *("torch.testing._internal.common_utils", "diffusers.pipelines.flux", "diffusers.pipelines.wan"),
)


@pytest.mark.skipif(sys.platform == "win32", reason="the process is forked")
def test_a_lora_of_stable_diffusion_imports_nothing_that_it_does_not_need(tmp_path, tiny_sd15, picture_folder):
    settings = {
        "family": "sd15",
        "workspace_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "model": {"base": str(tiny_sd15)},
        "concepts": [{"path": str(picture_folder(((32, 32),) * 2))}],
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 2},
        "max_steps": 1,
    }
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    code, imported = call_forked(imported_by_training, file)
    assert code == 0
    assert {"diffusers", "peft", "transformers", "tensorboard"} <= imported, "this process has not trained"
    assert sorted(imported.intersection(NOT_NEEDED)) == []


def imported_by_training(settings: Path) -> tuple[int, set[str]]:
    """(exit code, modules that have been imported by the end)."""
    from scripts.train import main

    code = main(["--config", str(settings)])
    return code, {*sys.modules}


def test_sigmas_of_a_beta_distribution_are_computed_although_scipy_is_not_imported_with_diffusers():
    assert call_forked(beta_sigmas) == (False, True, 5)


def beta_sigmas() -> tuple[bool, bool, int]:
    """Whether scipy.stats is imported before and after a scheduler needs it, and how many sigmas there are."""
    from modules.layers.quiet_imports import imported_when_used

    with imported_when_used():
        from diffusers import FlowMatchEulerDiscreteScheduler
    before = "scipy.stats" in sys.modules
    scheduler = FlowMatchEulerDiscreteScheduler(use_beta_sigmas=True)
    scheduler.set_timesteps(4)
    return before, "scipy.stats" in sys.modules, len(scheduler.sigmas)
