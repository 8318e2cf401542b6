from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.families import (
    families_taking,
    families_taking_clips,
)
from modules.config.methods import methods_that
from modules.config.setting import MAX_FRAMES, MAX_SIDE, STRICT, Float, Int, VisibleWhen, setting

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
        help="Images are resized to about the area of a square with this side, in pixels. 512 for Stable Diffusion "
        "1.x, 768 for 2.x, 1024 for XL and 3.",
        group="data",
        in_crash_report=True,
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
    )
    resolutions: list[Annotated[Int, Field(ge=8, le=MAX_SIDE)]] = setting(
        label="Multi-resolution",
        help="Each time an image is used, one of these resolutions is chosen at random. The epoch length does not "
        "change. Empty: always the one above.",
        group="data",
        unit="pixels",
        importance="advanced",
        default_factory=list,
    )
    frames: Int = setting(
        1,
        label="Frames per clip",
        also_called="num_frames, target_frames, frame_buckets, video_length",
        help="Above 1, videos in the folders are trained as clips of at most this many frames; images count as clips "
        "of one frame. A multiple of 4 plus 1 for Wan, of 8 plus 1 for LTX-Video; 17 is enough for a short motion.",
        group="data",
        in_crash_report=True,
        ge=1,
        le=MAX_FRAMES,
        visible_when={"family": families_taking_clips()},
    )
    fps: Float | None = setting(
        None,
        label="Frames per second",
        also_called="fps, target_fps, source_fps, frame_rate",
        help="Frame rate at which videos are trained and samples are saved. Videos with another rate are resampled. "
        "Empty: the model's own, such as 16 for Wan 2.1.",
        empty_means="as the model",
        group="data",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when={"family": families_taking_clips()},
    )
    clips: Literal["start", "middle", "random", "chunks"] = setting(
        "start",
        label="Clip extraction",
        also_called="frame_extraction, video_clip_mode, head, chunk",
        help="Which part of a video longer than a clip is used: its start, its middle, a random part, or consecutive "
        "clips until less than a whole one is left. Each clip gets the video's caption, or the part of it for its "
        "time: [0:03 - 0:06] in a caption starts such a part.",
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
        help="Fraction of clips trained as image-to-video, with the first frame as input. 0 trains only "
        "text-to-video, 1 only image-to-video; 0.5 keeps both.",
        group="data",
        ge=0,
        le=1,
        visible_when={"family": families_taking("first_frame", needed=False)},
    )
    last_frame: Float = setting(
        0.0,
        label="Last-frame conditioning",
        also_called="flf2v, first and last frame, keyframes",
        help="Fraction of clips trained with both the first and the last frame as input, so the model learns what "
        "happens in between. 0: only the first frame.",
        group="data",
        ge=0,
        le=1,
        visible_when={"family": families_taking("first_frame", last="optional")},
    )
    inpainting_shapes: Literal["mixed", "rectangles", "ellipses", "strokes"] = setting(
        "mixed",
        label="Random mask shapes",
        also_called="random mask, mask shapes, inpainting mask",
        help="Shapes of the random masks for images without a mask file: one to three rectangles, ellipses or brush "
        "strokes. Mixed: a random kind for each mask.",
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
        help="Fraction of the samples without a mask file whose mask covers the whole image, so the model still "
        "learns to paint from text alone. Stable Diffusion's inpainting models were trained with 0.25.",
        group="data",
        ge=0,
        le=1,
        visible_when=INPAINTING,
    )
    inpainting_variants: Int = setting(
        4,
        label="Cached masks per image",
        also_called="mask variations",
        help="Number of random masks for each image without a mask file. The masked image is encoded and cached for "
        "each of them, and one is chosen each time the image is used. 4 to 16; use more for small datasets.",
        group="data",
        ge=1,
        le=10_000,
        importance="advanced",
        visible_when=INPAINTING,
    )
    bucketing: bool = setting(
        True,
        label="Aspect ratio bucketing",
        also_called="ARB",
        help="Train on several shapes; each image uses the one closest to its own. Off: every image is cropped to a "
        "square, or to the width and height below.",
        group="data",
    )
    width: Int | None = setting(
        None,
        label="Width",
        also_called="fixed size, resolution 768x1024, train_width",
        help="Together with the height, trains every image at exactly this size. Empty: a square of the resolution.",
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
        help="Together with the width, trains every image at exactly this size. Empty: a square of the resolution.",
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
        help="Widths and heights of the shapes are multiples of this. 64 suits every model; smaller steps crop less "
        "but make more shapes.",
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
        help="Largest ratio of the long to the short side; more elongated images are cropped. 2 is usual.",
        group="data",
        ge=1,
        le=1000,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    max_side: Int | None = setting(
        None,
        label="Longest side",
        help="Maximum length of a shape's longer side, whatever the aspect ratio. Empty: only the aspect ratio counts.",
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
        help="Train images that are smaller than their shape at their own size, rounded down to whole steps, instead "
        "of enlarging them, which would teach blur. Many different sizes fill batches less well.",
        group="data",
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    caption_dropout: Float = setting(
        0.0,
        label="Caption dropout",
        also_called="unconditional",
        help="Fraction of samples trained without their caption, which keeps guidance working in long runs. 0 to 0.1.",
        group="data",
        ge=0,
        le=1,
        visible_when={"method": methods_that(lambda method: method.uses_captions)},
    )
    caption_variants: Int = setting(
        8,
        label="Cached tag shuffles",
        also_called="text_variations",
        help="Number of shuffled versions cached per caption, where tags are shuffled and captions are cached; each "
        "is a cache entry. While a text encoder is trained, each use is shuffled again.",
        group="data",
        ge=1,
        le=1000,
        importance="advanced",
    )
    augmentation_variants: Int = setting(
        4,
        label="Cached augmentations per image",
        also_called="image_variations",
        help="Number of augmented versions cached per image in concepts with augmentation; each is a cache entry. One "
        "of them is chosen each time the image is used.",
        group="data",
        ge=1,
        le=10_000,
        importance="advanced",
    )
    validation_share: Float = setting(
        0.0,
        label="Validation split",
        also_called="held out",
        help="Fraction of the images that are held out from training to measure the validation loss. Identical images "
        "stay together, and adding images doesn't change which ones are held out. 0 to 0.1.",
        group="data",
        ge=0,
        lt=1,
        importance="advanced",
    )
    max_unreadable_share: Float = setting(
        0.1,
        label="Max fraction of unreadable images",
        help="Images that can't be read are listed and skipped. If their fraction is larger than this, the run ends.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    prefetch_steps: Int = setting(
        2,
        label="Prefetch (steps)",
        also_called="dataloader_num_workers, max_data_loader_n_workers",
        help="Number of steps whose batches are loaded ahead while the GPU works. 0 loads each batch when it is "
        "needed; 2 hides most disks.",
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
