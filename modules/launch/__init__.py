"""How a run starts: alone, by spawn or torchrun, or joining ranks that others have started; and who watches it."""
