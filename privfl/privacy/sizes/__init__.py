"""Sizes of clients under local differential privacy."""
