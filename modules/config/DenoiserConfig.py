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
        help="Train both experts, only the high-noise one, which decides motion and composition, or only the "
        "low-noise one, which adds detail. Each is trained on its own timesteps and gets its own LoRA file. The other "
        "one is loaded only for samples.",
        group="method",
        choice_labels={"both": "Both", "high": "High noise", "low": "Low noise"},
        visible_when={**TRAINED, "family": families_with(experts=True)},
    )
