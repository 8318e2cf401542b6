"""The training loop for any PyTorch model: TrainingEngine, and the launch of several ranks for it."""
