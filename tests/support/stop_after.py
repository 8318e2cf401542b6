"""Ends a run early, as a person does who presses Stop."""


def stop_after(trainer, step: int) -> None:
    """Requests a stop so that the run ends with this step; results and requests are read one step late."""
    on_step = trainer.callbacks.on_step

    def watch(info):
        on_step(info)
        if info.step == step - 3:
            trainer.commands.stop()

    trainer.callbacks.on_step = watch
