"""Algorithms that weigh clients by how badly the model serves them."""
