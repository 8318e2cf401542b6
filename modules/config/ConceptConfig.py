"""One folder of pictures and what is made of it."""

from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Str, setting


@dataclass(config=STRICT)
class ConceptConfig:
    name: Str = setting(
        "",
        label="Name",
        help="What the concept is called in lists and messages. Empty: the name of its folder.",
        group="data",
    )
    path: Str = setting(
        "",
        label="Folder",
        help="The folder with the pictures.",
        group="data",
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
        help="Also take the pictures of the folders inside the folder.",
        group="data",
    )
    captions: Literal["txt", "file_name", "prompt"] = setting(
        "txt",
        label="Captions",
        help="Where a picture's caption comes from: a .txt file beside it (one caption per line, one of them drawn "
        "each time), the picture's file name, or one prompt for all pictures.",
        group="data",
        choice_labels={"txt": "Text file beside the picture", "file_name": "File name", "prompt": "One prompt for all"},
    )
    prompt: Str = setting(
        "",
        label="Prompt",
        help="The caption of every picture of the concept.",
        group="data",
        visible_when={".captions": ["prompt"]},
    )
    repeats: Float = setting(
        1.0,
        label="Repeats",
        help="How often each picture is used in an epoch. Fractions draw a share of the pictures anew each epoch: 10 "
        "pictures with 2.5 make 25 samples.",
        group="data",
        gt=0,
    )
    regularisation: bool = setting(
        False,
        label="Regularisation pictures",
        help="The pictures show what the model should not forget, not what it should learn. All such concepts "
        "together are shown as often as all others; their repeats say how they share this.",
        group="data",
        importance="advanced",
    )
    loss_weight: Float = setting(
        1.0,
        label="Loss weight",
        help="How strongly the concept's pictures count in the loss. 1 is normal, 0 has no effect on the model.",
        group="data",
        ge=0,
        importance="advanced",
    )
