"""Loads models and processors of transformers from a folder without running any code that comes with them.

Weights are read from safetensors files alone, whose headers are checked first; the classes are those of the table of
kinds, never those that a folder names.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modules.annotators.model_folder import safe_weights
from modules.config.errors import UserError
from modules.layers.quiet_imports import quiet_libraries
from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.processors import check_tokenizer, without_videos
from modules.weights.safe import read_header

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")


def load_model(class_name: str, folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of a class of transformers, on the device and ready for inference.

    Raises WeightsError if its files can't be used, or lack a tensor.
    """
    transformers = import_transformers()
    check_weights(folder)
    model_class = getattr(transformers, class_name)
    with refusing(lambda error: _refusal(folder, error)):
        model, report = model_class.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := min(report["missing_keys"], default=""):
        raise WeightsError(f"'{folder}': its weights lack {missing}: download the model again.")
    return model.to(device).eval()


def load_processor(class_name: str, folder: Path) -> Any:
    """A processor of transformers without its part for videos, which needs torchvision. Raises WeightsError."""
    transformers = import_transformers()
    processor_class = without_videos(getattr(transformers, class_name))
    with refusing(lambda error: _refusal(folder, error)):
        processor = processor_class.from_pretrained(folder, trust_remote_code=False)
        check_tokenizer(processor)
    return processor


def import_transformers() -> ModuleType:
    """Imports transformers, without its progress bars, and so that it never asks whether to run a model's code."""
    quiet_libraries()
    import transformers

    # Else it asks wherever one of its own processors loads a part by an Auto class. With 0 it refuses.
    transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    transformers.utils.logging.disable_progress_bar()
    return transformers


def check_weights(folder: Path) -> None:
    """Raises WeightsError if there are no safetensors files, or if one is damaged."""
    files = [name for name in safe_weights([path.name for path in folder.iterdir()]) if name.endswith(".safetensors")]
    if not files:
        raise WeightsError(
            f"'{folder}': has no model.safetensors, and pickled weights are never loaded, because they could run code: "
            "choose another copy of the model."
        )
    for name in files:
        read_header(folder / name)


def device_and_dtype(on_cpu: bool, index: int | None, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Where a model computes and in which dtype: the CPU or a GPU, and by default bfloat16 on GPUs that compute in it.

    index: of the GPU; None for the first. dtype: one of DTYPES; "" for the default. Raises UserError for a GPU that
    can't be used.
    """
    import torch

    from modules.distributed.Runtime import default_device
    from modules.distributed.usable_gpus import supports_bf16
    from modules.machine.devices import is_gpu

    device = torch.device("cpu") if on_cpu else default_device(() if index is None else (index,))
    usual = "bfloat16" if is_gpu(device) and supports_bf16(device) else "float32"
    return device, getattr(torch, dtype or usual)


def _refusal(folder: Path, error: Exception) -> UserError:
    return WeightsError(f"'{folder}': can't be loaded: {loading_reason(error)}.")
