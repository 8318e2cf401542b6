from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, Str, setting

BY_PROMPTS = {".source": ["prompts"]}


@dataclass(config=STRICT)
class SliderConfig:
    """The concept slider that the method `slider` trains: what grows at positive strengths, and shrinks at negative."""

    source: Literal["prompts", "pairs"] = setting(
        "prompts",
        label="Slider from",
        also_called="concept_slider, leco, image reference slider",
        help="What tells the slider its direction. Prompts: the difference between two prompts, as the model "
        "understands them; needs no images. Image pairs: images of a strong effect, each with its counterpart of a "
        "weak one in the concept's folder of paired images.",
        group="method",
        choice_labels={"prompts": "Prompts", "pairs": "Image pairs"},
    )
    target: Str = setting(
        "",
        label="Target prompt",
        also_called="target_class",
        help="What the slider changes, such as: person. Empty: everything.",
        group="method",
        kept_as="target prompt",
        visible_when=BY_PROMPTS,
    )
    positive: Str = setting(
        "",
        label="Positive slider prompt",
        help="What there is more of at positive strengths, such as: person, very old.",
        group="method",
        kept_as="positive slider prompt",
        visible_when=BY_PROMPTS,
    )
    negative: Str = setting(
        "",
        label="Negative slider prompt",
        also_called="unconditional",
        help="What there is less of at positive strengths, and more of at negative ones, such as: person, very young.",
        group="method",
        kept_as="negative slider prompt",
        visible_when=BY_PROMPTS,
    )
    preserve: Str = setting(
        "",
        label="Preserved attributes",
        also_called="attributes, anchor",
        help="Attributes that the slider must not change, separated by commas, such as: male, female. Each is put "
        "before both prompts, and the direction is the mean over them; each takes two more passes.",
        group="method",
        importance="advanced",
        kept_as="preserved attributes",
        visible_when=BY_PROMPTS,
    )
    eta: Float = setting(
        3.0,
        label="Guidance (eta)",
        also_called="guidance_strength, guidance_scale of sliders",
        help="How far the difference between the prompts moves the prediction for the target prompt. 2 to 4 is usual; "
        "more makes the slider stronger and less precise.",
        group="method",
        gt=0,
        le=1000,
        visible_when=BY_PROMPTS,
    )
    strength: Float = setting(
        1.0,
        label="Trained strength",
        also_called="network multiplier",
        help="The strengths of the LoRA that are trained: this one, and the same below zero. In use, it can be "
        "anything in between, and somewhat beyond.",
        group="method",
        gt=0,
        le=100,
        importance="advanced",
    )
    denoising_steps: Int = setting(
        8,
        label="Denoising steps",
        also_called="max_denoising_steps",
        help="Steps in which the model denoises the target prompt down to the trained timestep. Only without images: "
        "with images, noise is added to them instead, which is faster.",
        group="method",
        ge=1,
        le=1000,
        importance="advanced",
        visible_when=BY_PROMPTS,
    )
    denoising_guidance: Float = setting(
        3.0,
        label="Denoising guidance",
        help="Guidance scale of these steps. Above 1, each takes two passes. For models distilled to few steps or to a "
        "fixed guidance: 1.",
        group="method",
        ge=1,
        le=100,
        importance="advanced",
        visible_when=BY_PROMPTS,
    )
