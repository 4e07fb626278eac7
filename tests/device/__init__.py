"""A device that claims to be CUDA, and what privfl does on it."""
