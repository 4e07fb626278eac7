"""One run in this process: its rounds, costs, checkpoints, transcript and result."""
