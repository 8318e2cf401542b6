"""How a run starts (in this process, by spawn or torchrun, or joining a launcher's ranks) and is supervised."""
