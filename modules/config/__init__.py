"""Settings: what a run is asked to do."""
