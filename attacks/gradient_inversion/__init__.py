"""Reconstruction of inputs from gradients and updates."""
