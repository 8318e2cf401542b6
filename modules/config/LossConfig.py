from typing import Any, Literal

from pydantic.dataclasses import dataclass

from modules.config.families import families_taking
from modules.config.methods import methods_taking, methods_that
from modules.config.setting import STRICT, Float, setting

LEARNS_IMAGES: dict[str, list[Any]] = {"method": methods_that(lambda one: one.uses_denoiser and not one.compares)}
MASKED: dict[str, list[Any]] = {".masked_training": [True], **LEARNS_IMAGES}
WITH_DENOISER = methods_that(lambda method: method.uses_denoiser)
KEEPS_OLD_MODEL: dict[str, list[Any]] = {"method": methods_that(lambda method: method.keeps_old_model)}
PRESERVES: dict[str, list[Any]] = {"method": methods_that(lambda method: method.preserves_images)}


@dataclass(config=STRICT)
class LossConfig:
    """The loss: error terms, weighting of timesteps, masks and prior preservation."""

    mse: Float = setting(
        1.0,
        label="MSE weight",
        also_called="loss_type l2",
        help="Weight of the mean squared error. Loss terms are summed; 1 here and 0 elsewhere is standard.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=methods_taking("loss.mse"),
    )
    mae: Float = setting(
        0.0,
        label="MAE weight",
        also_called="loss_type l1",
        help="Weight of the mean absolute error, which is less sensitive to outliers.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=methods_taking("loss.mae"),
    )
    huber: Float = setting(
        0.0,
        label="Huber weight",
        also_called="loss_type huber",
        help="Weight of the Huber loss: squared for small errors, absolute for large ones, so a few bad images do "
        "less harm.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=methods_taking("loss.huber"),
    )
    smooth_l1: Float = setting(
        0.0,
        label="Smooth L1 weight",
        also_called="loss_type smooth_l1",
        help="Weight of the smooth L1 loss: the Huber loss divided by its threshold, so absolute errors count the "
        "same for any threshold.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=methods_taking("loss.smooth_l1"),
    )
    sound_weight: Float = setting(
        1.0,
        label="Sound weight",
        also_called="audio_loss_weight",
        help="Weight of the error of the sound beside that of the video. 0 learns the video alone, which still sees "
        "the sound. Clips without any sound never count.",
        group="training",
        ge=0,
        le=1_000_000,
        visible_when={"family": families_taking("sound"), "method": WITH_DENOISER},
        importance="advanced",
    )
    huber_delta: Float = setting(
        0.1,
        label="Huber threshold",
        help="Error from which the Huber loss is absolute; with a schedule, at the noisiest timestep.",
        group="training",
        gt=0,
        le=1,
        importance="advanced",
        visible_when=methods_taking("loss.huber"),
    )
    huber_schedule: Literal["constant", "exponential", "snr"] = setting(
        "constant",
        label="Huber schedule",
        help="How the threshold depends on the noise: exponential and SNR keep the squared error for nearly clean "
        "samples, which teach details.",
        group="training",
        choice_labels={"constant": "Constant", "exponential": "Exponential", "snr": "SNR"},
        importance="advanced",
        visible_when=methods_taking("loss.huber"),
    )
    log_cosh: Float = setting(
        0.0,
        label="Log-cosh weight",
        help="Weight of the log-cosh loss: half the squared error for small errors, absolute for those far above 1.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=methods_taking("loss.log_cosh"),
    )
    weighting: Literal["constant", "min_snr_gamma", "debiased", "p2", "sigma", "sigma_sqrt", "cosmap"] = setting(
        "constant",
        label="Loss weighting",
        also_called="debiased_estimation_loss",
        help="Weight of each timestep in the loss. Min-SNR, debiased and P2 are for Stable Diffusion 1, 2 and XL, the "
        "sigma weights and cosmap for flow models such as Stable Diffusion 3.",
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
        visible_when=methods_taking("loss.weighting"),
    )
    snr_gamma: Float = setting(
        5.0,
        label="Min-SNR gamma",
        help="Samples with a signal-to-noise ratio above this count less. 5 is usual.",
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
        help="How much samples with little noise are weighted down. 0.5 to 1 is usual.",
        group="training",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when={".weighting": ["p2"]},
    )
    debiased_v: Literal["paper", "onetrainer", "kohya"] = setting(
        "paper",
        label="Debiased weighting (v-prediction)",
        help="Formula of debiased estimation for v-prediction models. Paper: an error counts the same as with "
        "epsilon. OneTrainer: 1 / sqrt(SNR + 1). kohya: 1 / (SNR + 1).",
        group="training",
        choice_labels={"paper": "As in the paper", "onetrainer": "As OneTrainer", "kohya": "As kohya"},
        importance="advanced",
        visible_when={".weighting": ["debiased"]},
    )
    masked_training: bool = setting(
        False,
        label="Masked training",
        also_called="alpha_mask",
        help="Train only the white parts of a mask image next to each image: for cat.jpg, cat-mask.png, cat_mask.png, "
        "cat.mask.png or cat-masklabel.png. Images without a mask are trained in full.",
        group="training",
        visible_when=LEARNS_IMAGES,
    )
    unmasked_probability: Float = setting(
        0.1,
        label="Fraction without mask",
        help="Fraction of samples that ignore their mask, so the model still sees what surrounds the subject.",
        group="training",
        ge=0,
        le=1,
        visible_when=MASKED,
    )
    unmasked_weight: Float = setting(
        0.1,
        label="Unmasked weight",
        help="Weight of the black parts of a mask. 0 leaves them out, 1 ignores the mask.",
        group="training",
        ge=0,
        le=1,
        visible_when=MASKED,
    )
    normalize_masked_area_loss: bool = setting(
        False,
        label="Normalize by mask area",
        help="Divide the loss by the area of the mask, so images with a small subject count as much as others.",
        group="training",
        importance="advanced",
        visible_when=MASKED,
    )
    masked_prior_preservation_weight: Float = setting(
        0.0,
        label="Unmasked prior preservation",
        help="Weight of a loss that keeps the predictions outside the mask at those of the model before training. 0: "
        "off; 1 is usual. LoRA only; costs a second pass.",
        group="training",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=MASKED | PRESERVES,
    )
    prior_by_frozen_model: bool = setting(
        False,
        label="Regularize toward the base model",
        help="Regularization images keep the model at its predictions from before training instead of training it on "
        "the images themselves. LoRA only; costs a second pass for batches with such images.",
        group="training",
        importance="advanced",
        visible_when=PRESERVES,
    )
    output_preservation: bool = setting(
        False,
        label="Differential output preservation",
        also_called="diff_output_preservation, DOP",
        help="Keep the model's predictions from before training for captions in which the class word replaces the "
        "trigger word, so only the trigger word changes its images. LoRA only; two extra passes per batch.",
        group="training",
        importance="advanced",
        visible_when=PRESERVES,
    )
    output_preservation_weight: Float = setting(
        1.0,
        label="Output preservation weight",
        also_called="diff_output_preservation_multiplier",
        help="Weight of this loss relative to that of the images. 1 is usual.",
        group="training",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when={".output_preservation": [True], **PRESERVES},
    )
    blank_preservation: bool = setting(
        False,
        label="Blank prompt preservation",
        also_called="blank_prompt_preservation, BPP",
        help="Keep the model's predictions from before training for the empty prompt, so what is trained stays bound "
        "to captions and guidance keeps working. LoRA only; two extra passes per batch.",
        group="training",
        importance="advanced",
        visible_when=KEEPS_OLD_MODEL,
    )
    blank_preservation_weight: Float = setting(
        1.0,
        label="Blank prompt preservation weight",
        also_called="blank_prompt_preservation_multiplier",
        help="Weight of this loss relative to that of the images. 1 is usual.",
        group="training",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when={".blank_preservation": [True], **KEEPS_OLD_MODEL},
    )
