"""Short programs around TrainingEngine, each of another kind; docs/engine_gallery.md lists them."""
