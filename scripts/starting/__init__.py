"""The questions that start_multi_gpu.py asks."""
