"""The sizes of GPU memory that presets have variants for.

It imports nothing: the window needs them before it is drawn.
"""

MEMORY_SIZES = (8, 12, 16, 24, 32, 48, 80)
"""In GB."""
