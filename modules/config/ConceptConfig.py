from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.families import (
    families_taking,
    families_taking_clips,
    families_taking_masks,
)
from modules.config.methods import methods_that
from modules.config.setting import MAX_SIDE, STRICT, Float, Int, Str, section, setting

TABLE = {".captions": ["table"]}
PAIRS = {"method": methods_that(lambda method: bool(method.pair_words[0]))}
PRESERVED = {"loss.output_preservation": [True]}
USES_MASKS = {"loss.masked_training or family": [True, *families_taking_masks()]}


@dataclass(config=STRICT)
class ConceptConfig:
    """A concept: one folder of images and how it is used."""

    name: Str = setting(
        "",
        label="Name",
        help="Name of the concept in lists and messages. Empty: the name of its folder.",
        group="data",
    )
    path: Str = setting(
        "",
        label="Folder",
        also_called="image_dir, dataset",
        help="The folder with the images.",
        group="data",
        format="folder",
        scope="machine",
    )
    enabled: bool = setting(
        True,
        label="Enabled",
        help="Off: the concept stays in the list but isn't trained.",
        group="data",
    )
    include_subfolders: bool = setting(
        True,
        label="Include subfolders",
        help="Also use images in subfolders, except what a run has written there, such as samples.",
        group="data",
    )
    include: Str = setting(
        "",
        label="Include pattern",
        help="Patterns for paths below the folder, separated by commas: `people/*, *.jpg` includes a subfolder and "
        "all JPEGs. * matches any characters, including /, and case is ignored. Empty: all.",
        group="data",
        importance="advanced",
    )
    exclude: Str = setting(
        "",
        label="Exclude pattern",
        help="Patterns like those above; images that match are left out.",
        group="data",
        importance="advanced",
    )
    frame_folders_fps: Float | None = setting(
        None,
        label="Image sequences (fps)",
        also_called="image sequence, extracted frames, png sequence",
        help="Treat each subfolder of images as a video: its images, sorted by name, are the frames, at this many per "
        "second. The caption of the folder walk is walk.txt next to it. Empty: subfolders contain single images.",
        empty_means="single images",
        group="data",
        unit="frames per second",
        gt=0,
        le=240,
        importance="advanced",
        visible_when={"family": families_taking_clips()},
    )
    reference_folder: Str = setting(
        "",
        label="Reference folder",
        also_called="conditioning_data_dir, control_directory, control_path, edit, kontext",
        help="Images that the model sees together with the caption, such as each image before an edit. The references "
        "of cat.jpg are cat.png here, or cat_0.png, cat_1.png and so on, in the same subfolder.",
        group="data",
        format="folder",
        scope="machine",
        visible_when={"family": families_taking("references", without="layers")},
    )
    source_folder: Str = setting(
        "",
        label="Source clip folder",
        also_called="control_path, control video, edit, video to video, v2v",
        help="Clips that the model sees beside those of the concept, such as each video before an edit. The source of "
        "walk.mp4 is the video walk here, in the same subfolder, as long and with the same aspect ratio; that of an "
        "image is an image.",
        group="data",
        format="folder",
        scope="machine",
        visible_when={"family": families_taking("source_clip")},
    )
    layer_folder: Str = setting(
        "",
        label="Layer folder",
        also_called="rgba layers, psd, decomposition",
        help="The transparent layers of each image. Those of cat.png are cat_0.png, cat_1.png and so on, from bottom "
        "to top, in the same subfolder of this folder and with the same aspect ratio.",
        group="data",
        format="folder",
        scope="machine",
        visible_when={"family": families_taking("layers")},
    )
    pair_folder: Str = setting(
        "",
        label="Folder of paired images",
        also_called="folder pairs, negative folder, rejected images",
        help="The counterpart of each image, with the same name: of cat.jpg, cat.png here, in the same subfolder. A "
        "concept slider needs it for image pairs: it shows the weak effect, where the image shows the strong one. For "
        "preference training, the rejected image, where no preferences.jsonl in the concept's folder lists the pairs.",
        group="data",
        format="folder",
        scope="machine",
        visible_when=PAIRS,
    )
    mask_folder: Str = setting(
        "",
        label="Mask folder",
        also_called="conditioning_data_dir, mask_path, masks",
        help="Masks for masked training or inpainting, named like the images, in the same subfolder: cat.png here is "
        "the mask of cat.jpg. Empty: masks are next to the images, as cat-mask.png. For models that edit videos with "
        "a mask, masks can be videos, too.",
        empty_means="next to the images",
        group="data",
        format="folder",
        scope="machine",
        visible_when=USES_MASKS,
    )
    alpha_mask: bool = setting(
        False,
        label="Alpha channel as mask",
        also_called="transparency",
        help="Use the transparency of images that have no mask file as their mask: transparent parts are not learned "
        "in masked training, and are kept in inpainting.",
        group="data",
        visible_when=USES_MASKS,
    )
    captions: Literal["txt", "table", "file_name", "prompt"] = setting(
        "txt",
        label="Captions",
        help="Source of the captions: a text file next to each image, a table of all captions, the image's file name, "
        "or one prompt for all images.",
        group="data",
        choice_labels={
            "txt": "Caption file",
            "table": "Table (CSV or JSON lines)",
            "file_name": "File name",
            "prompt": "One prompt for all",
        },
    )
    caption_extension: Str = setting(
        ".txt",
        label="Caption extension",
        help="Extension of caption files, in any case: .caption for cat.caption next to cat.jpg. Empty: .txt.",
        group="data",
        importance="advanced",
        visible_when={".captions": ["txt"]},
    )
    caption_per_line: bool = setting(
        False,
        label="One caption per line",
        help="Each line of the text file is a caption; one is chosen at random each time the image is used. Off: the "
        "whole file is one caption.",
        group="data",
        visible_when={".captions": ["txt"]},
    )
    caption_table: Str = setting(
        "",
        label="Caption table",
        also_called="metadata_file, jsonl, csv",
        help="A .csv or .jsonl file in the folder, with a column file_name. Columns of a .csv file are separated by "
        "commas, semicolons or tabs; put captions that contain one in quotation marks. Several rows for an image are "
        "several captions. Empty: metadata.csv, metadata.jsonl, captions.csv or captions.jsonl, whichever exists "
        "first.",
        group="data",
        format="file",
        scope="machine",
        visible_when=TABLE,
    )
    caption_column: Str = setting(
        "",
        label="Caption column",
        help="Name of the table's caption column, in any case. Empty: caption or text.",
        group="data",
        importance="advanced",
        visible_when=TABLE,
    )
    prompt: Str = setting(
        "",
        label="Prompt",
        also_called="class_tokens, instance_prompt",
        help="The caption of every image of the concept.",
        group="data",
        format="long",
        visible_when={".captions": ["prompt"]},
    )
    caption_fallback: Str = setting(
        "",
        label="Fallback caption",
        also_called="class_tokens, default_caption, caption_strategy",
        help="Caption for images whose caption is missing or empty. Empty: they are trained without one, or with only "
        "the prefix and suffix.",
        group="data",
        visible_when={".captions": ["txt", "table"]},
    )
    caption_prefix: Str = setting(
        "",
        label="Caption prefix",
        also_called="trigger_word, prepend",
        help="Prepended to every caption, followed by a space, such as a trigger word; images without a caption get "
        "it alone. For tags, end it with the tag separator.",
        group="data",
        importance="advanced",
    )
    caption_suffix: Str = setting(
        "",
        label="Caption suffix",
        also_called="append",
        help="Appended to every caption, after a space unless it starts with punctuation. Images without a caption "
        "get it alone.",
        group="data",
        importance="advanced",
    )
    trigger_word: Str = setting(
        "",
        label="Trigger word",
        also_called="trigger_word",
        help="The word in the captions that stands for what is learned, for differential output preservation. "
        "Captions that don't contain it preserve nothing.",
        group="data",
        importance="advanced",
        visible_when=PRESERVED,
    )
    class_word: Str = setting(
        "",
        label="Class",
        also_called="diff_output_preservation_class",
        help="Class word that replaces the trigger word when preserving the base model's output, such as woman.",
        group="data",
        importance="advanced",
        visible_when=PRESERVED,
    )
    wildcards: bool = setting(
        False,
        label="Wildcards {a|b}",
        also_called="wildcards, dynamic prompts",
        help="Replace {red|blue} in a caption with one of the options, chosen at random each time the image is used.",
        group="data",
        importance="advanced",
    )
    removed_tags: Str = setting(
        "",
        label="Remove tags",
        also_called="tag blacklist, remove tags, caption filter",
        help="Tags to remove from all captions, separated by the tag separator. Regular expressions are allowed, such "
        "as .*_hair.",
        group="data",
        importance="advanced",
    )
    shuffle_tags: bool = setting(
        False,
        label="Shuffle tags",
        help="Treat captions as lists of tags and shuffle them each time. Cached captions have data.caption_variants "
        "orders.",
        group="data",
    )
    tag_separator: Str = setting(
        ",",
        label="Tag separator",
        help="Text between two tags.",
        group="data",
        importance="advanced",
    )
    secondary_separator: Str = setting(
        "",
        label="Separator within a group of tags",
        help='Separator that groups tags, such as ; in "cat, blue sky; clouds". A group is shuffled and dropped as '
        "one tag, and trained with the tag separator. Empty: none.",
        group="data",
        importance="advanced",
    )
    keep_tags: Int = setting(
        0,
        label="Keep tokens",
        help="Number of leading tags that are never shuffled or dropped, such as a trigger word.",
        group="data",
        ge=0,
    )
    kept_separator: Str = setting(
        "",
        label="Separator of kept tags",
        help="Separator such as |||. Tags before it stay first and are never dropped; tags after a second one stay "
        "last. Overrides Keep tokens. It is removed from the caption. Empty: none.",
        group="data",
        importance="advanced",
    )
    tag_dropout: Float = setting(
        0.0,
        label="Tag dropout",
        help="Fraction of the other tags that is dropped each time. 0 to 0.2.",
        group="data",
        ge=0,
        le=1,
    )
    tag_dropout_mode: Literal["single", "later", "all"] = setting(
        "single",
        label="Tag dropout mode",
        also_called="tag_dropout_mode, random weighted",
        help="Each tag independently; later tags more often, rising from never for the first to the fraction above "
        "for the last; or all tags together.",
        group="data",
        importance="advanced",
        choice_labels={"single": "Each tag independently", "later": "Later tags more often", "all": "All together"},
    )
    dropped_tags: Str = setting(
        "",
        label="Droppable tags",
        also_called="tag_dropout_special_tags, blacklist",
        help="Tags that tag dropout may drop, separated by the tag separator. Regular expressions are allowed, such "
        "as .*_hair. Empty: all that are not kept.",
        empty_means="all",
        group="data",
        importance="advanced",
    )
    undropped_tags: Str = setting(
        "",
        label="Protected tags",
        also_called="tag_dropout_special_tags, whitelist",
        help="Tags that are never dropped (same syntax as above). They can still be shuffled.",
        group="data",
        importance="advanced",
    )
    lower_case: bool = setting(
        False,
        label="Lower case",
        also_called="caps_randomize_lowercase",
        help="Convert captions to lower case; prefix, suffix and fallback stay unchanged.",
        group="data",
        importance="advanced",
    )
    capitalization: Literal["off", "upper", "title", "first", "random", "any"] = setting(
        "off",
        label="Random capitalization",
        also_called="caps_randomize_enable, caps_randomize_mode",
        help="Change the capitalization of some tags at random each time, so the model does not depend on it. Kept "
        "tags stay unchanged.",
        group="data",
        importance="advanced",
        choice_labels={
            "off": "Off",
            "upper": "ALL CAPITALS",
            "title": "Each Word",
            "first": "First word",
            "random": "rAnDoM leTteRs",
            "any": "Any of these",
        },
    )
    capitalization_share: Float = setting(
        0.1,
        label="Capitalized tags",
        also_called="caps_randomize_probability",
        help="Fraction of the tags whose capitalization changes.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
        visible_when={".capitalization": ["upper", "title", "first", "random", "any"]},
    )
    repeats: Float = setting(
        1.0,
        label="Repeats",
        also_called="num_repeats, balancing",
        help="How many times each image is used per epoch. A fraction chooses images at random in each epoch: 10 "
        "images with 2.5 make 25 samples.",
        group="data",
        gt=0,
        le=1_000_000,
    )
    share: Float | None = setting(
        None,
        label="Fraction of epoch",
        help="Fraction of each epoch taken from this concept, regardless of its number of images. Overrides repeats, "
        "which then matter only for the length of an epoch in which all concepts have a fraction. Empty: repeats "
        "count.",
        group="data",
        empty_means="by repeats",
        gt=0,
        le=1,
        importance="advanced",
    )
    resolution: Int | None = setting(
        None,
        label="Resolution",
        help="Resolution of this concept's images. Empty: that of the data settings. A folder in two concepts is "
        "trained at both of their resolutions.",
        group="data",
        unit="pixels",
        empty_means="as all images",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
    )
    resolutions: list[Annotated[Int, Field(ge=8, le=MAX_SIDE)]] = setting(
        label="Multi-resolution",
        help="Each time an image of this concept is used, one of these resolutions is chosen at random. Empty: the "
        "resolution above, or that of the data settings.",
        group="data",
        unit="pixels",
        importance="advanced",
        default_factory=list,
    )
    regularisation: bool = setting(
        False,
        label="Regularization (class) images",
        also_called="reg_data_dir, class images, prior preservation, is_reg",
        help="These images show what the model should not forget rather than what it should learn. All such concepts "
        "together are used as often as all others together; their repeats divide this among them.",
        group="data",
        importance="advanced",
        visible_when={"method": methods_that(lambda method: not method.compares)},
    )
    loss_weight: Float = setting(
        1.0,
        label="Loss weight",
        help="Weight of the concept's images in the loss. 1 is normal, 0 has no effect on the model.",
        group="data",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    validation: bool = setting(
        False,
        label="Validation only",
        help="The images are never trained on; they are used to measure the validation loss.",
        group="data",
        importance="advanced",
    )
    augmentation: AugmentationConfig = section(AugmentationConfig, label="Augmentation")
