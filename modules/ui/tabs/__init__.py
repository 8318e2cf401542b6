"""The tabs of the main window."""
