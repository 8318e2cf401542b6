"""Run folder, events and commands: how a run is started and followed."""
