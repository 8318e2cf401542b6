"""Captioners, one file for each kind; captioner_kinds.py is their table."""
