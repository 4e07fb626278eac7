"""Everything between the data and an observer; here the settings that name the mechanisms of a run."""
