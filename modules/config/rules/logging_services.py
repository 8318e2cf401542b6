"""Rules of where a run is logged."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from modules.config.problems import Problem
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

REFUSED_IN_PROJECTS = "/\\#?%:"  # by W&B


def logger_problems(config: TrainConfig) -> Iterator[Problem]:
    project, address = config.wandb.project, config.mlflow.tracking_uri
    if config.wandb.enabled and (found := sorted(set(project) & set(REFUSED_IN_PROJECTS))):
        message = f"wandb.project {show_value(project)} has {' '.join(found)}, which W&B refuses: leave it out."
        yield Problem("wandb.project", message)
    if config.mlflow.enabled and _has_password(address):
        message = (
            "mlflow.tracking_uri has a password, which the run folder would keep: leave the setting empty, and set the "
            "variable MLFLOW_TRACKING_URI."
        )
        yield Problem("mlflow.tracking_uri", message)


def _has_password(address: str) -> bool:
    try:
        return urlsplit(address).password is not None
    except ValueError:  # no address: MLflow says so
        return False
