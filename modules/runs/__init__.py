"""All runs below an output folder: their index, their marks, what differs between them, and how they compare."""
