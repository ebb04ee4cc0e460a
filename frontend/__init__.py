"""Text on one side, token ids on the other: what users talk to. Nothing here imports torch."""
