from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class VaeConfig:
    """The training of the autoencoder by the method `vae`."""

    kl_weight: Float = setting(
        1e-6,
        label="KL weight",
        help="Weight of the KL term, which keeps latents near a normal distribution: per latent value, relative to "
        "the mean error per pixel value. 1e-6 has hardly any effect, 1e-4 shapes a new autoencoder; 0 turns it off.",
        group="method",
        ge=0,
        le=1_000_000,
    )
    reconstruction: Literal["mse", "l1"] = setting(
        "mse",
        label="Reconstruction loss",
        help="Loss between the decoded image and the original. L1 keeps edges sharper, MSE is smoother.",
        group="method",
        choice_labels={"mse": "Squared error (MSE)", "l1": "Absolute error (L1)"},
    )
