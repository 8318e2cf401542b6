from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.families import families_with
from modules.config.PartConfig import TRAINED, PartConfig
from modules.config.setting import STRICT, setting


@dataclass(config=STRICT)
class DenoiserConfig(PartConfig):
    """The training of the denoiser, or of one of two."""

    expert: Literal["both", "high", "low"] = setting(
        "both",
        label="Experts",
        also_called="high noise, low noise, transformer_2, dual model, moe",
        help="Train both, or the one for high noise, which decides motion and composition, or the one for low noise, "
        "which draws the details, on its own timesteps. A LoRA has a file for each. The other one is loaded only to "
        "make samples.",
        group="method",
        choice_labels={"both": "Both", "high": "High noise", "low": "Low noise"},
        visible_when={**TRAINED, "family": families_with(experts=True)},
    )
