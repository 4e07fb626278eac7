"""Certified lower bounds on ε: is what a run leaks within what its statement claims?

    bound = audits.epsilon_from_counts(480, 500, 12, 500, delta=1e-5, confidence=0.95)
    print(bound)
    bound.refutes(run.statement.cell("sample", "server").epsilon)

Every :class:`LowerBound` holds with its confidence whatever was looked at on the way to it: decisions are fixed in
advance, chosen on other trials, or paid for. What an :class:`Estimate` says holds with none.
"""

from audits.bounds.bound import Estimate, LowerBound
from audits.bounds.counts import epsilon_from_counts, perfect_attack_ceiling
from audits.bounds.gaussian_family import GaussianFamily
from audits.bounds.one_run import epsilon_one_run, epsilon_one_run_from_scores, one_run_p_value
from audits.bounds.one_run_f_dp import epsilon_one_run_f_dp
from audits.bounds.one_shot import cosines, epsilon_one_shot
from audits.bounds.poisoning import epsilon_from_poisoning
from audits.bounds.rates import clopper_pearson_lower, clopper_pearson_upper
from audits.bounds.scores import epsilon_from_scores
from audits.canaries.canaries import Canaries, noise_canaries, rare_token_canaries, rare_token_task
from audits.canaries.client_canaries import audit_clients
from audits.canaries.gradient_canaries import audit_one_run, audit_two_worlds
from audits.mechanisms.local_randomizers import audit_repeated_answers, audit_size_mechanism
from audits.mechanisms.noise import audit_noise
from audits.result import AuditResult

__all__ = [
    "AuditResult",
    "Canaries",
    "Estimate",
    "GaussianFamily",
    "LowerBound",
    "audit_clients",
    "audit_noise",
    "audit_one_run",
    "audit_repeated_answers",
    "audit_size_mechanism",
    "audit_two_worlds",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "cosines",
    "epsilon_from_counts",
    "epsilon_from_poisoning",
    "epsilon_from_scores",
    "epsilon_one_run",
    "epsilon_one_run_f_dp",
    "epsilon_one_run_from_scores",
    "epsilon_one_shot",
    "noise_canaries",
    "one_run_p_value",
    "perfect_attack_ceiling",
    "rare_token_canaries",
    "rare_token_task",
]
