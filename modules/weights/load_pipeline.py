"""A whole pipeline for making pictures, with LoRAs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.errors import WeightsError
from modules.weights.inspect import inspect_base
from modules.weights.libraries import import_diffusers
from modules.weights.lora_files import load_lora

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline


def load_pipeline(base: str, loras: Sequence[str | Path], device: torch.device) -> DiffusionPipeline:
    """The pipeline of a diffusers folder or Hub id, with all `loras` at full strength, on `device`.

    Raises WeightsError, one sentence, for a base or LoRA that is missing, damaged or does not fit.
    """
    if inspect_base(base).kind == "single_file":
        raise WeightsError(f"base {base!r}: is a single file; give a diffusers folder or a Hub id.")
    try:
        pipe = import_diffusers().DiffusionPipeline.from_pretrained(Path(base).expanduser())
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"base {base!r}: can't be loaded ({reason}); fetch the model again.") from error
    pipe.set_progress_bar_config(disable=True)
    if getattr(pipe, "safety_checker", None) is not None:
        pipe.safety_checker = None  # it would hand out black pictures without a word
    for lora in loras:
        load_lora(pipe, lora)
    if loras:
        adapters = sorted({name for names in pipe.get_list_adapters().values() for name in names})
        pipe.set_adapters(adapters)  # diffusers leaves only the last one active
    return pipe.to(device)
