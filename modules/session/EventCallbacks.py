"""Callbacks that are written to the run folder's event file."""

from modules.session.event_types import Event
from modules.session.events import EventWriter
from modules.session.TrainCallbacks import TrainCallbacks


class EventCallbacks(TrainCallbacks):
    """Writes every event to `writer`, which the caller closes."""

    def __init__(self, writer: EventWriter):
        self.writer = writer

    def on_event(self, event: Event) -> None:
        self.writer.write(event)
