"""A web page of the runs, read only."""
