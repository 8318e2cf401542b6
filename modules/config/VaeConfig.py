from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class VaeConfig:
    """The training of the autoencoder by the method `vae`."""

    kl_weight: Float = setting(
        1e-6,
        label="KL weight",
        help="Weight of the term that keeps latents near a normal distribution, per latent value, beside the mean "
        "error of a pixel value. 1e-6 hardly shows, 1e-4 shapes a new autoencoder; 0 switches it off.",
        group="method",
        ge=0,
        le=1_000_000,
    )
    reconstruction: Literal["mse", "l1"] = setting(
        "mse",
        label="Reconstruction loss",
        help="How the decoded image is compared with the original. L1 keeps edges sharper, MSE is smoother.",
        group="method",
        choice_labels={"mse": "Squared error (MSE)", "l1": "Absolute error (L1)"},
    )
