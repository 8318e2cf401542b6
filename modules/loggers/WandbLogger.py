"""Figures and samples for Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from modules.loggers.access import refuse_missing_wandb
from modules.loggers.BackgroundLogger import BackgroundLogger, Figures, SampleFile
from modules.loggers.Logger import CLOSE_SECONDS, LoggedRun
from modules.loggers.run_ids import read_run_id, write_run_id

SERVICE = "wandb"
INIT_SECONDS = 30.0  # it is tried again, and a process that ends waits for the last try


class WandbLogger(BackgroundLogger):
    """Logs to a run at Weights & Biases, in the background. A resumed training continues its run.

        engine.train(..., callbacks=WandbLogger(project="flowers"))

    It needs the package `wandb`, and a login by `wandb login` or the variable WANDB_API_KEY; or WANDB_MODE=offline,
    which writes files that `wandb sync` sends later. If W&B can't be reached, training continues.

    project, entity: where the run belongs, the entity being a user or team; by default W&B's own choice.
    name: of the run, by default that of the training's folder.
    config: the settings to show with the run, as plain data.
    samples: whether to send sample images and videos, too, with their prompts.
    every_steps: log the figures of every so many optimizer steps.

    Raises UserError if the package is missing, or nobody is logged in.
    """

    title = "Weights & Biases"

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        samples: bool = True,
        every_steps: int = 1,
    ):
        super().__init__(every_steps, samples)
        refuse_missing_wandb()
        self._where = {"project": project or None, "entity": entity or None}
        self._name = name
        self._config = dict(config or {})
        self._wandb_run: Any = None

    def connect(self, run: LoggedRun) -> None:
        import wandb

        run_id = (run.resumes and read_run_id(run.folder, SERVICE)) or secrets.token_hex(4)
        write_run_id(run.folder, SERVICE, run_id)
        # silent from the start: otherwise it would ask for a login in the terminal, and print over its progress bar
        wandb.setup(settings=wandb.Settings(silent=True))
        self._wandb_run = wandb.init(
            **self._where,
            name=self._name or run.folder.name,
            id=run_id,
            resume="allow",
            dir=run.folder,
            config={**run.settings, **self._config},
            allow_val_change=True,
            reinit="create_new",  # beside a run of the program's own
            save_code=False,
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, init_timeout=INIT_SECONDS, finish_timeout=CLOSE_SECONDS
            ),
        )
        # W&B's own step only counts up and refuses lower ones, which a training has that goes back to a backup
        self._wandb_run.define_metric("step", hidden=True)
        self._wandb_run.define_metric("*", step_metric="step")
        if self._wandb_run.url:
            self.tell(f"Logging to {self._wandb_run.url}")

    def send_figures(self, batch: Sequence[Figures]) -> None:
        for figures in batch:
            self._wandb_run.log({**figures.values, "step": figures.step})

    def send_samples(self, samples: Sequence[SampleFile], step: int) -> None:
        import wandb

        media: dict[str, Any] = {}
        for sample in samples:
            kind = wandb.Video if sample.path.suffix == ".mp4" else wandb.Image
            media[f"samples/{sample.name}"] = kind(str(sample.path), caption=sample.prompt)
        self._wandb_run.log({**media, "step": step})

    def disconnect(self) -> None:
        self._wandb_run.finish(exit_code=0 if self.outcome == "finished" else 1)

    def how_to_send_the_rest(self) -> str:
        if self._wandb_run is None:
            return ""
        return f"`wandb sync` sends what is in {self._run.folder / 'wandb'}."
