"""The loggers that the settings of a run switch on."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.TrainConfig import TrainConfig
from modules.loggers.Logger import Logger
from modules.session.RunFolder import RunFolder


def run_loggers(config: TrainConfig, folder: RunFolder) -> Iterator[Logger]:
    """Each of them, not started. Raises UserError if one can't work here."""
    if config.tensorboard:
        from modules.loggers.TensorBoardLogger import TensorBoardLogger

        yield TensorBoardLogger(folder.tensorboard_dir)
    if config.csv:
        from modules.loggers.CsvLogger import CsvLogger

        yield CsvLogger()
    if config.wandb.enabled:
        from modules.loggers.WandbLogger import WandbLogger

        yield WandbLogger(config.wandb.project, config.wandb.entity, samples=config.wandb.samples)
    if config.mlflow.enabled:
        from modules.loggers.MlflowLogger import MlflowLogger

        yield MlflowLogger(config.mlflow.tracking_uri, config.mlflow.experiment, samples=config.mlflow.samples)
    if config.webhook.service != "off":
        from modules.loggers.WebhookLogger import webhook_logger

        yield webhook_logger(config)
