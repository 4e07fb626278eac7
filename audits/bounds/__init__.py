"""Certified lower bounds on ε: from counts, scores, guesses and Gaussian families."""
