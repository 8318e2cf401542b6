"""Model families: what a model is."""
