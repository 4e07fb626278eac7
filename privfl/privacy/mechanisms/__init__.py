"""The mechanisms of an upload: bounds, noise, secure sums."""
