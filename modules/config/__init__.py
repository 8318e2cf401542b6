"""The settings of a run: declaration, validation, files and presets."""
