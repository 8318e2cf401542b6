from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Str, setting

ENABLED = {".enabled": [True]}
KEPT_AS = "Weights & Biases"


@dataclass(config=STRICT)
class WandbConfig:
    """Logging to Weights & Biases."""

    enabled: bool = setting(
        False,
        label="Weights & Biases",
        also_called="log_with, report_to, wandb, logger, tracker",
        help="Also send losses, learning rates, speed and the settings to Weights & Biases. Needs the package wandb "
        "and `wandb login`; WANDB_MODE=offline keeps them on this machine until `wandb sync` sends them.",
        group="general",
        kept_as=KEPT_AS,
    )
    project: Str = setting(
        "chorus",
        label="W&B project",
        also_called="wandb_project, log_tracker_name, tracker_project_name",
        help="Project at Weights & Biases, created if it doesn't exist. The run has the name of its folder.",
        group="general",
        empty_means="uncategorized",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
    entity: Str = setting(
        "",
        label="W&B entity",
        also_called="wandb_entity, team",
        help="User or team that owns the project. Empty: the default of your account.",
        group="general",
        empty_means="default",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
    samples: bool = setting(
        True,
        label="Samples to W&B",
        also_called="log_samples, wandb images",
        help="Also send sample images and videos, with their prompts.",
        group="general",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
