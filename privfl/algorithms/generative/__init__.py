"""Algorithms that learn to draw data, or teach the server with drawn data."""
