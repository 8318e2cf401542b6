"""The models of real size, by name: a family, and what sets a model apart from others of it."""

SDXL, FLUX1, WHOLE_FLUX1, WAN = MODELS = ("sdxl", "flux1", "flux1 whole", "wan22_5b")
