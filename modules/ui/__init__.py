"""The window. It never imports torch; trainings run in separate processes."""
