"""Algorithms that give every client a model of its own."""
