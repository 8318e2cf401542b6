"""Chorus, a trainer for diffusion models."""
