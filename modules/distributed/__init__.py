"""Ranks: what differs between one and many."""
