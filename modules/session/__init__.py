"""A run on disk: run folder, events, commands, backups as files and crash report; signals, terminal and log."""
