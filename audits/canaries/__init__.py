"""Rows and clients that an auditor plants, and what an observer saw of them."""
