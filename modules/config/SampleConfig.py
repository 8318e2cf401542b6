from pydantic.dataclasses import dataclass

from modules.config.families import (
    families_taking,
    families_taking_clips,
    families_taking_images,
    families_taking_masks,
)
from modules.config.setting import MAX_FRAMES, MAX_SIDE, STRICT, Float, Int, Str, setting

DEFAULT_LAYERS, MAX_LAYERS = 4, 50


@dataclass(config=STRICT)
class SampleConfig:
    """A prompt to sample during the run, and how."""

    prompt: Str = setting(
        "",
        label="Prompt",
        also_called="sample_prompts, validation_prompt",
        help="What the image should show. Empty: a caption of the dataset, the next one for each further empty "
        "prompt; without captions, the name of a concept.",
        empty_means="from a caption",
        group="sampling",
        format="long",
    )
    negative_prompt: Str = setting(
        "",
        label="Negative prompt",
        help="What the image should not show.",
        group="sampling",
        format="long",
    )
    reference: Str = setting(
        "",
        label="Reference image",
        also_called="control image, init image, ctrl_img",
        help="An image, or a folder of several, that the model sees together with the prompt. Video models start with "
        "it; the second image of a folder is the last frame, if the model takes one. Inpainting models fill in parts "
        "of it, or generate a whole image without one. Qwen-Image-Layered decomposes it. Models that edit videos "
        "take a video, or a folder of its frames.",
        group="sampling",
        format="file",
        scope="machine",
        visible_when={"family": families_taking_images()},
    )
    last_frame: Str = setting(
        "",
        label="Last frame",
        also_called="last_image, end image, end frame, flf2v",
        help="The image that the video ends with. Empty: the model decides how it ends, unless it needs an image.",
        empty_means="open",
        group="sampling",
        format="file",
        scope="machine",
        visible_when={"family": families_taking("first_frame", takes_last=True)},
    )
    mask: Str = setting(
        "",
        label="Mask",
        also_called="mask_image, inpainting mask",
        help="White where the model fills in the reference image. Empty: the mask next to that image, such as "
        "cat-mask.png for cat.png; without one, the center of the image. For a video: an image, a video or a folder of "
        "frames; without one, all of it.",
        empty_means="next to the image",
        group="sampling",
        format="file",
        scope="machine",
        visible_when={"family": families_taking_masks()},
    )
    seed: Int = setting(
        42,
        label="Seed",
        help="Seed of the noise. The same seed makes samples of different steps comparable; if there are several "
        "images, each uses the next seed.",
        group="sampling",
        ge=0,
        le=2**31 - 1,
    )
    width: Int | None = setting(
        None,
        label="Width",
        help="Width of the image; a multiple of 8 or 16, depending on the model. Empty: the training resolution.",
        group="sampling",
        unit="pixels",
        empty_means="as trained",
        ge=8,
        le=MAX_SIDE,
    )
    height: Int | None = setting(
        None,
        label="Height",
        help="Height of the image; a multiple of 8 or 16, depending on the model. Empty: the training resolution.",
        group="sampling",
        unit="pixels",
        empty_means="as trained",
        ge=8,
        le=MAX_SIDE,
    )
    frames: Int | None = setting(
        None,
        label="Frames",
        also_called="num_frames, sample_frames, video_length",
        help="Number of frames of the video, as in data.frames; 1 makes an image. Empty: as many as the training "
        "clips.",
        empty_means="as the training clips",
        group="sampling",
        ge=1,
        le=MAX_FRAMES,
        visible_when={"family": families_taking_clips()},
    )
    layers: Int = setting(
        DEFAULT_LAYERS,
        label="Layers",
        also_called="num_layers",
        help="Number of layers into which the image is decomposed.",
        group="sampling",
        ge=1,
        le=MAX_LAYERS,
        visible_when={"family": families_taking("layers")},
    )
    steps: Int = setting(
        25,
        label="Sampling steps",
        also_called="sample_steps, num_inference_steps, diffusion_steps",
        help="Number of sampling steps. 20 to 30 are good; more take longer and change little.",
        group="sampling",
        ge=1,
        le=10_000,
    )
    guidance: Float = setting(
        7.5,
        label="Guidance scale",
        also_called="cfg, cfg_scale, guidance_scale",
        help="How closely the image follows the prompt. 5 to 8 for Stable Diffusion 1.x and 2.x, 3 to 5 for 3.",
        group="sampling",
        ge=0,
        le=1000,
    )
    count: Int = setting(
        1,
        label="Images per prompt",
        help="Number of images to generate for this prompt.",
        group="sampling",
        ge=1,
        le=10_000,
    )
    enabled: bool = setting(
        True,
        label="Enabled",
        help="Off: the prompt stays in the list but no image is generated for it.",
        group="sampling",
    )
