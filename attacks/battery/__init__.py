"""Everything that applies to a run at once, and the run staged anew where the attacker has a hand in it."""
