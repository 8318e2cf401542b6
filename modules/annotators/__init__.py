"""Models that write captions, tags and masks for a dataset, in a process of their own."""
