"""Models that draw masks, one file for each kind; masker_kinds.py is their table."""
