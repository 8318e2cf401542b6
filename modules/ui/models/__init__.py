"""The window's models: the settings, the run, the machine and the data. No Tk."""
