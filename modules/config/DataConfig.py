from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.families import (
    families_taking,
    families_taking_clips,
)
from modules.config.methods import methods_that
from modules.config.setting import MAX_SIDE, STRICT, Float, Int, VisibleWhen, setting

INPAINTING: VisibleWhen = {
    "family": families_taking("inpainting"),
    "method": methods_that(lambda method: method.uses_denoiser),
}


@dataclass(config=STRICT)
class DataConfig:
    """How images and captions are prepared."""

    resolution: Int = setting(
        512,
        label="Resolution",
        also_called="size, train_resolution",
        help="Images are resized to about this many pixels squared. 512 for Stable Diffusion 1.x, 768 for 2.x, "
        "1024 for XL and 3.",
        group="data",
        in_crash_report=True,
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
    )
    resolutions: list[Annotated[Int, Field(ge=8, le=MAX_SIDE)]] = setting(
        label="Multi-resolution",
        help="Each time an image is shown, it is in one of these resolutions, drawn anew; an epoch stays as long. "
        "Empty: always the one above.",
        group="data",
        unit="pixels",
        importance="advanced",
        default_factory=list,
    )
    frames: Int = setting(
        1,
        label="Frames per clip",
        also_called="num_frames, target_frames, frame_buckets, video_length",
        help="Above 1, the videos in the folders are trained, too, with at most this many frames; images stay clips of "
        "one frame. A multiple of 4 plus 1 for Wan, of 8 plus 1 for LTX-Video: 17 learns a short motion.",
        group="data",
        in_crash_report=True,
        ge=1,
        le=100_000,
        visible_when={"family": families_taking_clips()},
    )
    fps: Float | None = setting(
        None,
        label="Frames per second",
        also_called="fps, target_fps, source_fps, frame_rate",
        help="The rate at which videos are trained and samples are saved; the frames of another rate are chosen by "
        "time. Empty: the model's own, such as 16 for Wan 2.1.",
        empty_means="as the model",
        group="data",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when={"family": families_taking_clips()},
    )
    clips: Literal["start", "middle", "random", "chunks"] = setting(
        "start",
        label="Clips of a longer video",
        also_called="frame_extraction, video_clip_mode, head, chunk",
        help="Which part of a video that is longer than a clip is trained: its start, its middle, a part drawn by the "
        "seed, or consecutive clips until less than a whole one is left. Each of them has the video's caption, or "
        "that of its time: [0:03 - 0:06] in a caption starts that of a part.",
        group="data",
        choice_labels={
            "start": "The start",
            "middle": "The middle",
            "random": "A random part",
            "chunks": "Consecutive clips",
        },
        visible_when={"family": families_taking_clips()},
    )
    image_to_video: Float = setting(
        0.0,
        label="Image to video",
        also_called="i2v, first_frame_conditioning_p, first frame",
        help="Fraction of the clips of which the model is given the first frame, to learn how it goes on. 0 trains "
        "text to video alone, 1 image to video alone; 0.5 keeps both.",
        group="data",
        ge=0,
        le=1,
        visible_when={"family": families_taking("first_frame", needed=False)},
    )
    last_frame: Float = setting(
        0.0,
        label="Last frame given",
        also_called="flf2v, first and last frame, keyframes",
        help="Fraction of the clips of which the model is given the last frame beside the first, to learn what comes "
        "between. 0 trains it to go on from the first frame alone.",
        group="data",
        ge=0,
        le=1,
        visible_when={"family": families_taking("first_frame", last="optional")},
    )
    inpainting_shapes: Literal["mixed", "rectangles", "ellipses", "strokes"] = setting(
        "mixed",
        label="Drawn masks",
        also_called="random mask, mask shapes, inpainting mask",
        help="What the masks of images without a mask file look like: one to three rectangles, ellipses or brush "
        "strokes. Mixed: one of these kinds for each mask.",
        group="data",
        choice_labels={
            "mixed": "Mixed",
            "rectangles": "Rectangles",
            "ellipses": "Ellipses",
            "strokes": "Brush strokes",
        },
        visible_when=INPAINTING,
    )
    inpainting_whole: Float = setting(
        0.25,
        label="Whole image masked",
        also_called="mask everything, full mask probability",
        help="Fraction of the samples without a mask file whose mask is the whole image, so that the model also paints "
        "images from text alone. Stable Diffusion's inpainting models were made with 0.25.",
        group="data",
        ge=0,
        le=1,
        visible_when=INPAINTING,
    )
    inpainting_variants: Int = setting(
        4,
        label="Cached masks per image",
        also_called="mask variations",
        help="How many masks are drawn for each image without a mask file; for each, the masked image is encoded and "
        "cached. Each time the image is used, one of them is drawn. 4 to 16; few images need more of them.",
        group="data",
        ge=1,
        le=10_000,
        importance="advanced",
        visible_when=INPAINTING,
    )
    bucketing: bool = setting(
        True,
        label="Aspect ratio bucketing",
        also_called="enable_bucket, aspect_ratio_bucketing, ARB",
        help="Train on several shapes, each image in the one nearest to its own. Off: every image is cropped to "
        "a square, or to the width and height that are given.",
        group="data",
    )
    width: Int | None = setting(
        None,
        label="Width",
        also_called="fixed size, resolution 768x1024, train_width",
        help="With the height: every image is trained in exactly this size. Empty: a square of the resolution.",
        empty_means="square",
        group="data",
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
        visible_when={".bucketing": [False]},
    )
    height: Int | None = setting(
        None,
        label="Height",
        also_called="train_height",
        help="With the width: every image is trained in exactly this size. Empty: a square of the resolution.",
        empty_means="square",
        group="data",
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
        visible_when={".bucketing": [False]},
    )
    bucket_step: Int = setting(
        64,
        label="Bucket resolution steps",
        also_called="bucket_reso_steps",
        help="Widths and heights of the shapes are multiples of this. 64 suits every model; smaller steps crop less "
        "and make more shapes.",
        group="data",
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    max_aspect: Float = setting(
        2.0,
        label="Max aspect ratio",
        also_called="max_aspect_ratio",
        help="Long side over short side of the most elongated shape; images beyond it are cropped. 2 is usual.",
        group="data",
        ge=1,
        le=1000,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    max_side: Int | None = setting(
        None,
        label="Longest side",
        also_called="max_bucket_reso",
        help="No shape has a longer side than this, whatever aspect ratio is allowed. Empty: the aspect ratio decides.",
        empty_means="by aspect ratio",
        group="data",
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    no_upscale: bool = setting(
        False,
        label="Don't upscale images",
        also_called="bucket_no_upscale",
        help="An image that is smaller than its shape is trained in its own size, rounded down to whole steps, and not "
        "enlarged, which would teach its blur. Many different sizes fill batches less well.",
        group="data",
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    caption_dropout: Float = setting(
        0.0,
        label="Caption dropout",
        also_called="caption_dropout_rate, dropout_probability, unconditional",
        help="Fraction of the samples that are trained without their caption, which keeps guidance working in long "
        "trainings. 0 to 0.1.",
        group="data",
        ge=0,
        le=1,
        visible_when={"method": methods_that(lambda method: method.uses_captions)},
    )
    caption_variants: Int = setting(
        8,
        label="Cached tag shuffles",
        also_called="text_variations",
        help="How many orders of each caption are made where tags are shuffled and captions are cached; every one is a "
        "cache entry. While a text encoder trains each showing has an order of its own.",
        group="data",
        ge=1,
        le=1000,
        importance="advanced",
    )
    augmentation_variants: Int = setting(
        4,
        label="Cached augmentations per image",
        also_called="image_variations",
        help="How many looks each image of a concept with augmentation has; every one is a cache entry. Each "
        "showing draws one of them.",
        group="data",
        ge=1,
        le=10_000,
        importance="advanced",
    )
    validation_share: Float = setting(
        0.0,
        label="Validation split",
        also_called="validation_split, held out",
        help="Fraction of the images that is never trained on, to see how well the model does on images it does not "
        "know. Equal images stay together, and adding images moves none. 0 to 0.1.",
        group="data",
        ge=0,
        lt=1,
        importance="advanced",
    )
    max_unreadable_share: Float = setting(
        0.1,
        label="Max fraction of unreadable images",
        help="Images that can't be read are listed and left out; a larger share than this stops the run.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    prefetch_steps: Int = setting(
        2,
        label="Prefetch (steps)",
        also_called="dataloader_num_workers, max_data_loader_n_workers",
        help="Batches of how many steps are loaded while the GPU works. 0 loads each when it is needed; 2 hides "
        "most disks.",
        group="data",
        unit="steps",
        ge=0,
        le=1000,
        importance="advanced",
    )

    @property
    def fixed_shape(self) -> tuple[int, int] | None:
        """(width, height) in which all images are trained, if they are given."""
        return None if self.bucketing or self.width is None or self.height is None else (self.width, self.height)

    @property
    def shape(self) -> tuple[int, int]:
        """(width, height) of images that are not cropped, and of samples without a size of their own."""
        return self.fixed_shape or (self.resolution, self.resolution)
