"""What this machine has and can do: devices, links, memory, ports, and the doctor. No torch, no Tk."""
