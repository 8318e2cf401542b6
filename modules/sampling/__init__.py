"""Samples: from prompts to images and videos, by the pipelines of diffusers, while a run trains and after it."""
