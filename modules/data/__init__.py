"""From concepts to batches."""
