"""What a run takes of a GPU's memory, by its settings alone."""
