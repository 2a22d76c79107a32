"""One module a trainer: its keys, its correction, the metrics it logs and its quirks, side by side."""
