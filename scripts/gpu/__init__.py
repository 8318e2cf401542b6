"""What scripts/gpu_tests.py checks and measures on a GPU, in parts that each run in a process of their own."""
