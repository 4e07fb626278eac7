"""Algorithms for clients whose classes differ: calibrated losses, prototypes, contrasts."""
