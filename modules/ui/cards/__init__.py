"""Titled parts of a page."""
