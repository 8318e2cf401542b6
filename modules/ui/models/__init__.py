"""What the window knows: the settings, the run, the machine and the data, for people to see. No Tk."""
