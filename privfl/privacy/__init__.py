"""Everything between the data and an observer."""
