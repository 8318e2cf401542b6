"""When samples are made during the run, and of which prompts."""

from pydantic.dataclasses import dataclass

from modules.config.SampleConfig import SampleConfig
from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting


@dataclass(config=STRICT)
class SamplingConfig:
    every: Float = setting(
        0.0,
        label="Sample every",
        also_called="sample_every_n_steps, sample_after, validation_steps",
        help="How much training lies between two rounds of samples, in the unit beside it.",
        group="sampling",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Unit",
        help="What the interval between two rounds of samples is counted in; never makes none by itself.",
        group="sampling",
        choice_labels=INTERVAL_LABELS,
    )
    at_start: bool = setting(
        False,
        label="Sample at the start",
        also_called="sample_at_first",
        help="Also make the samples before the first step, to see what the training changes.",
        group="sampling",
    )
    at_end: bool = setting(
        False,
        label="Sample at the end",
        help="Also make the samples after the last step.",
        group="sampling",
    )
    batch_size: Int = setting(
        4,
        label="Sampling batch size",
        help="How many images each GPU makes at once. Lower it if sampling runs out of memory.",
        group="sampling",
        ge=1,
        importance="advanced",
    )
    samples: list[SampleConfig] = setting(
        label="Samples",
        help="The prompts that samples are made of.",
        group="sampling",
        part_name="prompt",
        kept_as="prompts",
        default_factory=list,
    )
