from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class PreferenceConfig:
    """Direct preference optimization by the method `preference`."""

    beta: Float = setting(
        2000.0,
        label="Beta (DPO)",
        also_called="beta_dpo, dpo",
        help="How closely the model stays to the base while it learns to prefer the chosen images. 2000 for Stable "
        "Diffusion 1.x and 5000 for XL are usual; lower values change more.",
        group="method",
        gt=0,
        le=1_000_000,
    )
