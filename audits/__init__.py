"""Certified lower bounds on ε: is what a run leaks within what its statement claims?

    bound = audits.epsilon_from_counts(480, 500, 12, 500, delta=1e-5, confidence=0.95)
    print(bound)
    bound.refutes(run.statement.cell("sample", "server").epsilon)

Every :class:`LowerBound` holds with its confidence whatever was looked at on the way to it: decisions are fixed in
advance, chosen on other trials, or paid for. What an :class:`Estimate` says holds with none.
"""

from audits.bound import Estimate, LowerBound
from audits.counts import epsilon_from_counts, perfect_attack_ceiling
from audits.gaussian import GaussianFamily
from audits.rates import clopper_pearson_lower, clopper_pearson_upper
from audits.scores import epsilon_from_scores

__all__ = [
    "Estimate",
    "GaussianFamily",
    "LowerBound",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "epsilon_from_counts",
    "epsilon_from_scores",
    "perfect_attack_ceiling",
]
