"""Training a cohort: clients one by one or stacked in one kernel, and adding up what they send."""
