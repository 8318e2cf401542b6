"""What scripts/window_pictures.py shows: a real run of the demo, and an example for the rest."""
