"""Methods: what of a model is trained."""
