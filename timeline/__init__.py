"""Where the time goes: spans of every process and device, recorded, gathered, reported and drawn."""
