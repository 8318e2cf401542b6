from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.families import (
    families_taking,
    families_taking_clips,
)
from modules.config.setting import MAX_SIDE, STRICT, Float, Int, Str, section, setting

TABLE = {".captions": ["table"]}
PRESERVED = {"loss.output_preservation": [True]}
USES_MASKS = {"loss.masked_training or family": [True, *families_taking("inpainting")]}


@dataclass(config=STRICT)
class ConceptConfig:
    """A concept: one folder of images and how it is used."""

    name: Str = setting(
        "",
        label="Name",
        help="What the concept is called in lists and messages. Empty: the name of its folder.",
        group="data",
    )
    path: Str = setting(
        "",
        label="Folder",
        also_called="train_data_dir, image_dir, dataset",
        help="The folder with the images.",
        group="data",
        format="folder",
        scope="machine",
    )
    enabled: bool = setting(
        True,
        label="Enabled",
        help="Off: the concept stays in the list and is not trained.",
        group="data",
    )
    include_subfolders: bool = setting(
        True,
        label="Include subfolders",
        help="Also take the images of the folders inside the folder, except what a run has written there, such as "
        "its samples.",
        group="data",
    )
    include: Str = setting(
        "",
        label="Include pattern",
        help="Patterns for the path below the folder, separated by commas: `people/*, *.jpg` takes a subfolder and all "
        "JPEGs. * stands for any characters, / too, and case does not matter. Empty: all.",
        group="data",
        importance="advanced",
    )
    exclude: Str = setting(
        "",
        label="Exclude pattern",
        help="Patterns like those of the images to take: what they match is left out.",
        group="data",
        importance="advanced",
    )
    frame_folders_fps: Float | None = setting(
        None,
        label="Frame folders",
        also_called="image sequence, extracted frames, png sequence",
        help="Each subfolder with images is a video whose frames these are, by name, so many of them per second. The "
        "caption of the folder walk is walk.txt beside it. Empty: subfolders hold single images.",
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
        help="Images that the model sees beside the caption, such as what each image looked like before an edit. The "
        "references of cat.jpg are cat.png here, or cat_0.png, cat_1.png and so on, in the same subfolder.",
        group="data",
        format="folder",
        scope="machine",
        visible_when={"family": families_taking("references", without="layers")},
    )
    layer_folder: Str = setting(
        "",
        label="Layer folder",
        also_called="rgba layers, psd, decomposition",
        help="The transparent layers of each image. Those of cat.png are cat_0.png, cat_1.png and so on here, from the "
        "bottom to the top, in the same subfolder and with its aspect ratio.",
        group="data",
        format="folder",
        scope="machine",
        visible_when={"family": families_taking("layers")},
    )
    mask_folder: Str = setting(
        "",
        label="Mask folder",
        also_called="conditioning_data_dir, mask_path, masks",
        help="Masks for masked training or inpainting, named like the images, in the same subfolder: cat.png here is "
        "the mask of cat.jpg. Empty: masks lie beside the images, as cat-masklabel.png.",
        empty_means="beside the images",
        group="data",
        format="folder",
        scope="machine",
        visible_when=USES_MASKS,
    )
    alpha_mask: bool = setting(
        False,
        label="Alpha channel as mask",
        also_called="alpha_mask, transparency",
        help="The transparency of an image without a mask is its mask: transparent parts are not learned in masked "
        "training, and are kept in inpainting.",
        group="data",
        visible_when=USES_MASKS,
    )
    captions: Literal["txt", "table", "file_name", "prompt"] = setting(
        "txt",
        label="Captions",
        help="Where an image's caption comes from: a text file beside it, a table of all captions, the image's file "
        "name, or one prompt for all images.",
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
        also_called="caption_extension",
        help="Of the caption files, in upper or lower case: .caption for cat.caption beside cat.jpg. Empty: .txt.",
        group="data",
        importance="advanced",
        visible_when={".captions": ["txt"]},
    )
    caption_per_line: bool = setting(
        False,
        label="One caption per line",
        help="Each line of the text file is a caption, and one of them is drawn each time the image is shown. Off: "
        "the whole file is one caption.",
        group="data",
        visible_when={".captions": ["txt"]},
    )
    caption_table: Str = setting(
        "",
        label="Caption table",
        also_called="metadata_file, jsonl, csv",
        help="A .csv or .jsonl file in the folder, with a column file_name. Commas, semicolons or tabs divide the "
        "columns of a .csv file; captions with one of them need quotation marks. Several rows for an image are several "
        "captions. Empty: metadata.csv, metadata.jsonl, captions.csv or captions.jsonl, the first that is there.",
        group="data",
        format="file",
        scope="machine",
        visible_when=TABLE,
    )
    caption_column: Str = setting(
        "",
        label="Caption column",
        help="Name of the table's column with the captions, in any case. Empty: caption or text.",
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
        help="The caption of images that have none, or an empty one. Empty: they are trained without one, or with the "
        "prefix and suffix alone.",
        group="data",
        visible_when={".captions": ["txt", "table"]},
    )
    caption_prefix: Str = setting(
        "",
        label="Caption prefix",
        also_called="caption_prefix, trigger_word, prepend",
        help="Put before every caption, with a space, such as a trigger word, and used alone for images without a "
        "caption. For tags, end it with their separator.",
        group="data",
        importance="advanced",
    )
    caption_suffix: Str = setting(
        "",
        label="Caption suffix",
        also_called="caption_suffix, append",
        help="Put behind every caption, with a space unless it begins with a comma or the like. Used alone for images "
        "without a caption.",
        group="data",
        importance="advanced",
    )
    trigger_word: Str = setting(
        "",
        label="Trigger word",
        also_called="trigger_word",
        help="The word in the captions that stands for what is learned, for differential output preservation. Captions "
        "without it preserve nothing.",
        group="data",
        importance="advanced",
        visible_when=PRESERVED,
    )
    class_word: Str = setting(
        "",
        label="Class",
        also_called="diff_output_preservation_class",
        help="What takes the place of the trigger word in captions whose images shall stay as they are, such as woman.",
        group="data",
        importance="advanced",
        visible_when=PRESERVED,
    )
    wildcards: bool = setting(
        False,
        label="Alternatives in braces",
        also_called="enable_wildcard, wildcards, dynamic prompts",
        help="{red|blue} in a caption stands for one of the two, drawn each time the image is shown.",
        group="data",
        importance="advanced",
    )
    removed_tags: Str = setting(
        "",
        label="Tags left out",
        also_called="tag blacklist, remove tags, caption filter",
        help="Tags that are removed from all captions, with the separator between them. Each may be a regular "
        "expression, such as .*_hair.",
        group="data",
        importance="advanced",
    )
    shuffle_tags: bool = setting(
        False,
        label="Shuffle tags",
        also_called="shuffle_caption",
        help="Captions are lists of tags, whose order is drawn anew each time. Cached captions have "
        "data.caption_variants orders.",
        group="data",
    )
    tag_separator: Str = setting(
        ",",
        label="Tag separator",
        also_called="caption_separator",
        help="What stands between two tags.",
        group="data",
        importance="advanced",
    )
    secondary_separator: Str = setting(
        "",
        label="Separator within a group of tags",
        also_called="secondary_separator",
        help="As ; in cat, blue sky; clouds: what it joins is shuffled and left out as one tag. In the trained caption "
        "the tag separator takes its place. Empty: none.",
        group="data",
        importance="advanced",
    )
    keep_tags: Int = setting(
        0,
        label="Keep tokens",
        also_called="keep_tokens",
        help="So many tags stay first and are never left out, such as a trigger word.",
        group="data",
        ge=0,
    )
    kept_separator: Str = setting(
        "",
        label="Separator of kept tags",
        also_called="keep_tokens_separator",
        help="As |||: tags before it stay first and are never left out, whatever Keep tokens says; those after a "
        "second one stay last. It is no part of the trained caption. Empty: none.",
        group="data",
        importance="advanced",
    )
    tag_dropout: Float = setting(
        0.0,
        label="Tag dropout",
        also_called="caption_tag_dropout_rate",
        help="Fraction of the other tags that is left out each time. 0 to 0.2.",
        group="data",
        ge=0,
        le=1,
    )
    tag_dropout_mode: Literal["single", "later", "all"] = setting(
        "single",
        label="Tag dropout mode",
        also_called="tag_dropout_mode, random weighted",
        help="Each tag by itself; later tags more often, from never for the first to the fraction above for the last; "
        "or all tags together.",
        group="data",
        importance="advanced",
        choice_labels={"single": "Each tag by itself", "later": "Later tags more often", "all": "All together"},
    )
    dropped_tags: Str = setting(
        "",
        label="Tags that dropout may leave out",
        also_called="tag_dropout_special_tags, blacklist",
        help="With the separator between them; each may be a regular expression, such as .*_hair. Empty: all that are "
        "not kept.",
        empty_means="all",
        group="data",
        importance="advanced",
    )
    undropped_tags: Str = setting(
        "",
        label="Tags that dropout never leaves out",
        also_called="tag_dropout_special_tags, whitelist",
        help="Written as those that it may leave out. They can still be shuffled.",
        group="data",
        importance="advanced",
    )
    lower_case: bool = setting(
        False,
        label="Lower case",
        also_called="caps_randomize_lowercase",
        help="Captions are turned into lower case; prefix, suffix and fallback stay as they are.",
        group="data",
        importance="advanced",
    )
    capitalization: Literal["off", "upper", "title", "first", "random", "any"] = setting(
        "off",
        label="Random capitalization",
        also_called="caps_randomize_enable, caps_randomize_mode",
        help="Some tags are trained in another capitalization, drawn each time, so that the model does not depend on "
        "it. Kept tags stay as they are.",
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
        help="How often each image is used in an epoch. Fractions draw a share of the images anew each epoch: 10 "
        "images with 2.5 make 25 samples.",
        group="data",
        gt=0,
        le=1_000_000,
    )
    share: Float | None = setting(
        None,
        label="Fraction of epoch",
        help="The concept fills this share of every epoch, however many images it has; its repeats then matter only "
        "if all concepts have a share, for the length of an epoch. Empty: the repeats decide.",
        group="data",
        empty_means="by repeats",
        gt=0,
        le=1,
        importance="advanced",
    )
    resolution: Int | None = setting(
        None,
        label="Resolution",
        help="Of this concept's images. Empty: that of the data settings. A folder in two concepts trains in both of "
        "their resolutions.",
        group="data",
        unit="pixels",
        ge=8,
        le=MAX_SIDE,
        importance="advanced",
    )
    resolutions: list[Annotated[Int, Field(ge=8, le=MAX_SIDE)]] = setting(
        label="Multi-resolution",
        help="Each time an image of this concept is shown, it is in one of these resolutions, drawn anew. Empty: the "
        "resolution above, or the data settings.",
        group="data",
        unit="pixels",
        importance="advanced",
        default_factory=list,
    )
    regularisation: bool = setting(
        False,
        label="Regularization (class) images",
        also_called="reg_data_dir, class images, prior preservation, is_reg",
        help="The images show what the model should not forget, not what it should learn. All such concepts "
        "together are shown as often as all others; their repeats say how they share this.",
        group="data",
        importance="advanced",
    )
    loss_weight: Float = setting(
        1.0,
        label="Loss weight",
        also_called="prior_loss_weight",
        help="How strongly the concept's images count in the loss. 1 is normal, 0 has no effect on the model.",
        group="data",
        ge=0,
        le=1_000_000,
        importance="advanced",
    )
    validation: bool = setting(
        False,
        label="Validation only",
        help="The images are never trained on: they show how well the model does on images it does not know.",
        group="data",
        importance="advanced",
    )
    augmentation: AugmentationConfig = section(AugmentationConfig, label="Augmentation")
