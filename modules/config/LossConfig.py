from typing import Any, Literal

from pydantic.dataclasses import dataclass

from modules.config.methods import methods_that
from modules.config.setting import STRICT, Float, setting

MASKED: dict[str, list[Any]] = {".masked_training": [True]}
KEEPS_OLD_MODEL: dict[str, list[Any]] = {"method": methods_that(lambda method: method.keeps_old_model)}


@dataclass(config=STRICT)
class LossConfig:
    """The loss: error terms, weighting of timesteps, masks and prior preservation."""

    mse: Float = setting(
        1.0,
        label="MSE weight",
        also_called="loss_type l2, mse_strength",
        help="The shares of all errors add up: squared, absolute, Huber, smooth L1 and log-cosh. Models are made "
        "with 1 here and 0 for the others.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    mae: Float = setting(
        0.0,
        label="MAE weight",
        also_called="loss_type l1, mae_strength",
        help="Heeds large errors less than the squared error does.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    huber: Float = setting(
        0.0,
        label="Huber weight",
        also_called="loss_type huber, huber_strength",
        help="Squared where the error is small, absolute where it is large: a few bad images do less harm.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    smooth_l1: Float = setting(
        0.0,
        label="Smooth L1 weight",
        also_called="loss_type smooth_l1",
        help="The Huber error divided by its threshold: absolute errors count the same whatever the threshold is.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    huber_delta: Float = setting(
        0.1,
        label="Huber threshold",
        also_called="huber_c",
        help="From about this error on the Huber error is absolute; with a schedule, at the noisiest timestep.",
        group="training",
        gt=0,
        le=1,
        importance="advanced",
    )
    huber_schedule: Literal["constant", "exponential", "snr"] = setting(
        "constant",
        label="Huber schedule",
        also_called="huber_schedule",
        help="Whether the threshold depends on the noise: exponential and SNR keep the squared error for nearly clean "
        "samples, which teach details.",
        group="training",
        choice_labels={"constant": "Constant", "exponential": "Exponential", "snr": "SNR"},
        importance="advanced",
    )
    log_cosh: Float = setting(
        0.0,
        label="Log-cosh weight",
        also_called="log_cosh_strength",
        help="Half the squared error where the error is small, absolute where it is far above 1.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    weighting: Literal["constant", "min_snr_gamma", "debiased", "p2", "sigma", "sigma_sqrt", "cosmap"] = setting(
        "constant",
        label="Loss weighting",
        also_called="loss_weight_fn, debiased_estimation_loss, scale_v_pred_loss_like_noise_pred",
        help="How much each timestep counts. Min-SNR, debiased and P2 are for Stable Diffusion 1, 2 and XL, the sigma "
        "weights and cosmap for flow models such as Stable Diffusion 3.",
        group="training",
        choice_labels={
            "constant": "Constant",
            "min_snr_gamma": "Min-SNR gamma",
            "debiased": "Debiased estimation",
            "p2": "P2",
            "sigma": "Sigma",
            "sigma_sqrt": "Sigma sqrt",
            "cosmap": "Cosmap",
        },
        importance="advanced",
    )
    snr_gamma: Float = setting(
        5.0,
        label="Min-SNR gamma",
        also_called="min_snr_gamma",
        help="Samples whose signal-to-noise ratio is above this count less. 5 is usual.",
        group="training",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when={".weighting": ["min_snr_gamma"]},
    )
    p2_gamma: Float = setting(
        1.0,
        label="P2 gamma",
        also_called="loss_weight_strength",
        help="How much less samples with little noise count. 0.5 to 1 is usual.",
        group="training",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when={".weighting": ["p2"]},
    )
    debiased_v: Literal["paper", "onetrainer", "kohya"] = setting(
        "paper",
        label="Debiased with v",
        also_called="debiased_estimation_loss",
        help="What debiased estimation is for models that predict v. Paper: the same mistake counts as with epsilon. "
        "OneTrainer: 1 / sqrt(SNR + 1). kohya: 1 / (SNR + 1).",
        group="training",
        choice_labels={"paper": "As in the paper", "onetrainer": "As OneTrainer", "kohya": "As kohya"},
        importance="advanced",
        visible_when={".weighting": ["debiased"]},
    )
    masked_training: bool = setting(
        False,
        label="Masked training",
        also_called="masked_loss, alpha_mask",
        help="Learns only the white parts of a mask image beside each image: for cat.jpg, cat-mask.png, "
        "cat_mask.png, cat.mask.png or cat-masklabel.png. Images without one are learnt whole.",
        group="training",
    )
    unmasked_probability: Float = setting(
        0.1,
        label="Fraction without mask",
        help="This share of the samples is trained whole, so that the model keeps seeing what surrounds the subject.",
        group="training",
        ge=0,
        le=1,
        visible_when=MASKED,
    )
    unmasked_weight: Float = setting(
        0.1,
        label="Unmasked weight",
        help="How much the black parts of a mask count. 0 leaves them out, 1 ignores the mask.",
        group="training",
        ge=0,
        le=1,
        visible_when=MASKED,
    )
    normalize_masked_area_loss: bool = setting(
        False,
        label="Normalize by mask area",
        help="Divides the loss by the area of the mask, so that images with a small subject count as much as others.",
        group="training",
        importance="advanced",
        visible_when=MASKED,
    )
    masked_prior_preservation_weight: Float = setting(
        0.0,
        label="Unmasked prior preservation",
        help="Outside the mask the model is held to what it predicted before the training, with this weight. 0 "
        "switches it off; 1 is usual. LoRA only; costs a second pass.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=MASKED | KEEPS_OLD_MODEL,
    )
    prior_by_frozen_model: bool = setting(
        False,
        label="Regularize towards the base model",
        help="Regularization images hold the model to what it predicted before the training, not to the images "
        "themselves. LoRA only; costs a second pass for batches with such images.",
        group="training",
        importance="advanced",
        visible_when=KEEPS_OLD_MODEL,
    )
    output_preservation: bool = setting(
        False,
        label="Differential output preservation",
        also_called="diff_output_preservation, DOP, blank prompt preservation",
        help="Holds the model to what it predicted before the training where a caption has the class in place of the "
        "trigger word, so that only the trigger word changes its images. LoRA only; two further passes per batch.",
        group="training",
        importance="advanced",
        visible_when=KEEPS_OLD_MODEL,
    )
    output_preservation_weight: Float = setting(
        1.0,
        label="Output preservation weight",
        also_called="diff_output_preservation_multiplier",
        help="How much this counts beside the images themselves. 1 is usual.",
        group="training",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when={".output_preservation": [True], **KEEPS_OLD_MODEL},
    )
