"""Checks of whether a machine is fit for training; each returns a plain record."""
