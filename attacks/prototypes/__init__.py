"""Reconstruction and membership from averages of features."""
