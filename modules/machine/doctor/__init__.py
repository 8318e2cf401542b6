"""What is right and wrong with a machine that shall train: checks, each of which gives a plain record."""
