"""Rules that involve several settings, by subject; `validation.py` lists them in the order of their problems."""
