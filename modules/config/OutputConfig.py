from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.families import families_with_single_files
from modules.config.methods import methods_that
from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, Str, setting


@dataclass(config=STRICT)
class OutputConfig:
    """What the trained model is called, and how it is written."""

    name: Str = setting(
        "model",
        label="Model name",
        help="Name of the saved model's files. Characters that a file name can't hold are replaced.",
        group="output",
        kept_as="model name",
    )
    every: Float = setting(
        0.0,
        label="Save every",
        also_called="save_after",
        help="Interval between saved models.",
        group="output",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Save while training",
        help="Unit of the interval. Never: save only at the end.",
        group="output",
        choice_labels=INTERVAL_LABELS,
    )
    keep: Int | None = setting(
        None,
        label="Keep the last",
        also_called="max_step_saves_to_keep, checkpoints_total_limit",
        help="Number of models saved during training to keep; older ones are deleted. The final model always stays. "
        "Empty: all of them.",
        group="output",
        ge=1,
        empty_means="all",
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    format: Literal["diffusers", "single_file", "both"] = setting(
        "both",
        label="Format",
        help="Diffusers' format, the one that ComfyUI and A1111 read, or both, as far as the family supports them. A "
        "LoRA is one file in either; a full model is a folder for diffusers and a single file for others.",
        group="output",
        choice_labels={"diffusers": "Diffusers folder", "single_file": "Single file", "both": "Both"},
        visible_when={"method": methods_that(lambda method: method.has_formats)},
    )
    dtype: Literal["float32", "float16", "bfloat16"] = setting(
        "float32",
        label="Precision",
        help="Data type of the saved weights. float16 halves the file, with no visible difference in most images.",
        group="output",
    )
    float8_denoiser: bool = setting(
        False,
        label="Save U-Net / transformer as fp8",
        also_called="fp8, float8, save_precision fp8",
        help="Store the matrices of the U-Net or transformer as float8 (e4m3) in the single file: half the size of "
        "float16, with a small loss of quality. ComfyUI and diffusers read it. Training and the diffusers folder are "
        "not affected.",
        group="output",
        importance="advanced",
        visible_when={
            "method": methods_that(lambda method: method.trains_weights),
            ".format": ["single_file", "both"],
            "family": families_with_single_files(),
        },
    )
    save_ema: Literal["averaged", "plain", "both"] = setting(
        "averaged",
        label="Saved weights",
        help="Save the averaged weights, the trained weights, or both; the averaged ones then get a name that ends in "
        "_ema.",
        group="output",
        choice_labels={"averaged": "Averaged", "plain": "As trained", "both": "Both"},
        importance="advanced",
        visible_when={"ema.enabled": [True]},
    )
    fallback_dir: Str = setting(
        "",
        label="Fallback folder",
        help="Where the model and the last backup are saved at the end of a run if the run folder can't be written, "
        "for example because its disk is full. Empty, or if this has no space either: the system's temporary folder.",
        group="output",
        format="folder",
        empty_means="temporary folder",
        scope="machine",
        kept_as="fallback folder",
        importance="advanced",
    )
    wait_minutes: Float = setting(
        10.0,
        label="Wait for disk space",
        help="How long a finished run waits for space in the run folder if the model or the last backup could not be "
        "written there. They are saved as soon as there is space; stopping ends the wait.",
        group="output",
        unit="minutes",
        ge=0,
        importance="advanced",
    )
