from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Str, setting

ENABLED = {".enabled": [True]}
KEPT_AS = "MLflow"


@dataclass(config=STRICT)
class MlflowConfig:
    """Logging to MLflow."""

    enabled: bool = setting(
        False,
        label="MLflow",
        also_called="log_with, report_to, mlflow, logger, tracker",
        help="Also send losses, learning rates, speed and the settings to an MLflow server or database. Needs the "
        "package mlflow; credentials come from MLflow's own variables, such as MLFLOW_TRACKING_TOKEN.",
        group="general",
        kept_as=KEPT_AS,
    )
    tracking_uri: Str = setting(
        "",
        label="Tracking URI",
        also_called="mlflow_tracking_uri, tracking server",
        help="Address of the server, such as http://localhost:5000, or of a database, such as sqlite:///mlflow.db. "
        "Empty: the variable MLFLOW_TRACKING_URI, or mlflow.db in the folder that the run is started in.",
        group="general",
        empty_means="MLflow's default",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
    experiment: Str = setting(
        "chorus",
        label="Experiment",
        also_called="experiment_name, mlflow_experiment_name",
        help="Experiment at MLflow, created if it doesn't exist. The run has the name of its folder.",
        group="general",
        empty_means="Default",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
    samples: bool = setting(
        True,
        label="Samples to MLflow",
        also_called="log_samples, artifacts",
        help="Also send sample images and videos, with their prompts.",
        group="general",
        kept_as=KEPT_AS,
        visible_when=ENABLED,
    )
