"""Mutants of the privacy code: one deliberate mistake each, and whether a test sees it; see the runner."""
