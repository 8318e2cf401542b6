from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.SampleConfig import SampleConfig
from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting

Sampler = Literal["model", "euler", "heun"]


@dataclass(config=STRICT)
class SamplingConfig:
    """When samples are made during the run, and of which prompts."""

    every: Float = setting(
        0.0,
        label="Sample every",
        also_called="validation_steps",
        help="Interval between rounds of samples.",
        group="sampling",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Unit",
        help="Unit of the interval. Never: no samples at intervals.",
        group="sampling",
        choice_labels=INTERVAL_LABELS,
    )
    at_start: bool = setting(
        False,
        label="Sample at the start",
        help="Also generate samples before the first step, to see what training changes.",
        group="sampling",
    )
    at_end: bool = setting(
        False,
        label="Sample at the end",
        help="Also generate samples after the last step.",
        group="sampling",
    )
    batch_size: Int = setting(
        4,
        label="Sampling batch size",
        help="Number of images that each GPU generates at the same time. Lower it if sampling runs out of memory.",
        group="sampling",
        ge=1,
        le=10_000,
        importance="advanced",
    )
    sampler: Sampler = setting(
        "model",
        label="Sampler",
        also_called="scheduler",
        help="Turns noise into the image. Heun evaluates the model twice per step and is more accurate with few steps.",
        group="sampling",
        importance="advanced",
        choice_labels={"model": "As in the base model", "euler": "Euler", "heun": "Heun"},
    )
    samples: list[SampleConfig] = setting(
        label="Samples",
        help="The prompts for samples.",
        group="sampling",
        part_name="prompt",
        kept_as="prompts",
        default_factory=list,
    )

    @property
    def makes_samples(self) -> bool:
        """Whether the run makes samples without being asked."""
        is_due = self.at_start or self.at_end or self.unit != "never"
        return is_due and any(sample.enabled for sample in self.samples)
