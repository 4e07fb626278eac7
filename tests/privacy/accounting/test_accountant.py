"""Every claim against values that privfl did not compute, and against the edges where other accountants break."""

import math
from decimal import Context, Decimal, localcontext
from itertools import product
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
import scipy
import torch
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV, compute_safe_domain_size
from scipy import optimize

import privfl
from privfl.errors import PrivacyError
from privfl.privacy.accounting.accountant import (
    Bound,
    _certified_interval,
    _reach,
    composed_kinds,
    epsilon,
    pld_epsilon,
    randomized_response_total,
    rounding_excess,
)
from privfl.privacy.accounting.composition import compose
from privfl.privacy.accounting.events import EpsilonDeltaDpEvent
from privfl.privacy.accounting.renyi import renyi_epsilon
from tests.privacy.accounting.accounting_oracles import (
    ADD_REMOVE,
    ORACLES,
    REPLACE,
    ZERO_OUT,
    poisson,
    rows,
    sampled,
    values,
)

NEARLY = Decimal("1e-6")


def claim(history, delta):
    return epsilon(history, delta, interval=False).epsilon


def named(row):
    return str(row.get("id") or row.get("name") or list(row.values())[:4])


# --- Poisson-sampled Gaussian noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("subsampled_gaussian"), ids=named)
def test_claims_are_the_pld_to_1e_3_and_lie_inside_the_prv_interval(row):
    bound = epsilon({sampled(row["q"], row["sigma"]): row["T"]}, row["delta"])
    assert bound.accountant == "PLD"
    assert bound.epsilon == pytest.approx(row["pld"], rel=5e-4)
    assert bound.epsilon <= row["rdp"]
    if row["prv_lower"] is not None:
        assert bound.interval_source == "PRV"
        assert row["prv_lower"] < bound.epsilon < row["prv_upper"]
        assert bound.lower == pytest.approx(row["prv_lower"], abs=1e-3)
        # At delta = 1e-9 the rounding of transforms shows: SciPy 1.18 moves the end by 1e-4, a hundredth of its error,
        # and an EPYC without AVX512 by 3.5e-5.
        same = 1e-5 if tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 18) else 1e-3
        if row["delta"] < 1e-8 and torch.backends.cpu.get_cpu_capability() != "AVX512":
            same = max(same, 1e-4)
        assert bound.lower <= bound.estimate <= bound.upper == pytest.approx(row["prv_upper"], abs=same)


@pytest.mark.parametrize("row", rows("subsampled_gaussian"), ids=named)
def test_replace_one_claims_are_those_of_dp_accounting(row):
    assert claim({sampled(row["q"], row["sigma"], REPLACE): row["T"]}, row["delta"]) == pytest.approx(
        row["replace_one_pld"], rel=5e-4
    )


@pytest.mark.parametrize("row", rows("subsampled_gaussian_opacus_pins"), ids=named)
def test_claims_lie_a_hundredth_below_the_upper_ends_that_opacus_pins(row):
    ours = claim({sampled(row["q"], row["sigma"]): row["T"]}, row["delta"])
    assert row["opacus_test_pin"] - 0.021 < ours < row["opacus_test_pin"]
    if "dp_accounting_pld" in row:
        assert ours == pytest.approx(row["dp_accounting_pld"], rel=5e-4)


def test_the_prv_end_that_opacus_tests_lies_above_the_claim_and_its_rdp_higher_still():
    section = ORACLES["opacus_accountants_test_pins"]
    setting, pinned = section["setting"], section["values"]
    ours = claim({sampled(setting["q"], setting["sigma"]): setting["T"]}, setting["delta"])
    assert ours < pinned["prv"] < ours + 0.011 < pinned["rdp"]
    assert ours > pinned["gdp_interval"][1]


@pytest.mark.parametrize("row", rows("published_training_settings"), ids=named)
def test_published_trainings_restated(row):
    ours = claim({sampled(row["q"], row["sigma"]): row["T"]}, row["delta"])
    assert ours == pytest.approx(row["pld"], rel=5e-4)
    assert ours < row["rdp_new"] < row["published"]


@pytest.mark.parametrize("row", rows("fl_client_level_published"), ids=lambda row: f"N{row['N']:.0e}-T{row['T']}")
def test_client_level_claims_of_dp_fedavg(row):
    ours = claim({sampled(row["C"] / row["N"], row["z"]): row["T"]}, row["delta"])
    assert ours < row["dp_accounting_rdp"] < row["fl4health_expected"] + 1e-2
    if row["dp_accounting_pld"] is not None:
        assert ours == pytest.approx(row["dp_accounting_pld"], rel=5e-4)


@pytest.mark.parametrize("row", rows("fl_fixed_cohort_adaptive_clipping"), ids=lambda row: f"C{row['C']}-z{row['z']}")
def test_cohorts_of_fixed_size_are_accounted_as_such_not_as_poisson(row):
    delta = row["N"] ** -1.1
    event = dp.SampledWithoutReplacementDpEvent(int(row["N"]), row["C"], dp.GaussianDpEvent(row["z"]))
    bound = epsilon({(event, REPLACE): row["T"]}, delta)
    assert bound.accountant == "RDP"
    assert bound.epsilon == pytest.approx(row["rdp_wor_replace_one"], rel=1e-9)
    assert claim({sampled(row["C"] / row["N"], row["z"]): row["T"]}, delta) == pytest.approx(
        row["poisson"][1], rel=1e-3
    )


@pytest.mark.parametrize("row", rows("double_amplification_trap"), ids=lambda row: f"z{row['z']}")
def test_visible_participation_earns_no_amplification_by_client_sampling(row):
    steps = row["steps_per_round"]
    visible = {sampled(row["q_batch"], row["z"]): int(row["q_client"] * row["rounds"]) * steps}
    always = {sampled(row["q_batch"], row["z"]): row["rounds"] * steps}
    assert claim(visible, row["delta"]) == pytest.approx(row["visible_participation"][1], rel=5e-4)
    assert claim(always, row["delta"]) == pytest.approx(row["participates_always"][1], rel=5e-4)
    assert claim(visible, row["delta"]) > 3 * row["product_q"][1]


@pytest.mark.parametrize("row", rows("heterogeneous_composition"), ids=lambda row: f"{len(row['history'])} kinds")
def test_heterogeneous_histories_lie_inside_the_prv_interval(row):
    bound = epsilon({sampled(q, sigma): count for sigma, q, count in row["history"]}, row["delta"])
    assert bound.epsilon == pytest.approx(row["dp_accounting_PLD"], rel=2e-4)
    assert bound.interval_source == "PRV"
    assert bound.lower < bound.epsilon < bound.upper == pytest.approx(row["opacus_PRV"], abs=1e-5)
    if "prv_accountant_lo_est_up" in row:
        assert row["prv_accountant_lo_est_up"][0] < bound.epsilon < row["prv_accountant_lo_est_up"][2]


def test_the_upper_end_is_what_opacus_own_accountant_returns():
    accountant = PRVAccountant()
    accountant.history = [(1.0, 0.1, 50), (1.2, 0.2, 30), (0.8, 0.05, 100)]
    bound = epsilon({sampled(q, sigma): count for sigma, q, count in accountant.history}, 1e-5)
    assert bound.upper == accountant.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("rows_of_noise", "counts"),
    [([(0.5, 100.0)], [8]), ([(0.01, 1.0)], [1000]), ([(1.0, 2.0), (0.1, 0.7)], [3, 50]), ([(0.2, 0.3)], [1])],
    ids=["much noise", "many steps", "a plain and a sampled one", "one step"],
)
def test_the_grid_reaches_as_far_as_opacus_lets_it(rows_of_noise, counts):
    losses = [PoissonSubsampledGaussianPRV(rate, noise) for rate, noise in rows_of_noise]
    for delta in (1e-5, 1e-9):
        expected = compute_safe_domain_size(losses, counts, eps_error=0.01, delta_error=delta)
        for _ in range(2):  # computed, and remembered
            assert _reach(rows_of_noise, counts, delta) == expected


def test_a_pinned_hockey_stick_divergence_of_dp_accounting():
    pins = {pin["case"]: pin for pin in values("gaussian_dp_accounting_pins")}
    pin = pins["Poisson(.2,Gaussian(.5)) x3"]
    assert claim({sampled(0.2, 0.5): 3}, pin["delta"]) == pytest.approx(pin["eps"], rel=1e-3)
    pin = pins["Gaussian(sqrt 3) x3"]
    assert claim({(dp.GaussianDpEvent(math.sqrt(3)), ADD_REMOVE): 3}, pin["delta"]) == pytest.approx(1, rel=1e-4)
    pin = pins["Gaussian sigma for (1,1e-6)"]
    assert claim({(dp.GaussianDpEvent(pin["sigma"]), ADD_REMOVE): 1}, 1e-6) <= 1.2


# --- plain Gaussian noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("gdp_mu_to_eps"), ids=lambda row: f"mu{row['mu']}-delta{row['delta']}")
def test_plain_gaussian_noise_has_the_closed_form(row):
    bound = epsilon({(dp.GaussianDpEvent(1 / row["mu"]), ADD_REMOVE): 1}, row["delta"])
    assert bound.interval_source == "closed form"
    assert row["scipy_brentq"] * (1 - 1e-12) <= bound.epsilon <= row["scipy_brentq"] * (1 + 1e-8)


@pytest.mark.parametrize("row", rows("gdp_sigma_for_eps"), ids=lambda row: f"eps{row['eps']}")
def test_the_noise_that_others_calibrate_gives_back_the_target(row):
    assert claim({(dp.GaussianDpEvent(row["sigma_dp_accounting"]), ADD_REMOVE): 1}, row["delta"]) == pytest.approx(
        row["eps"], rel=1e-7
    )


@pytest.mark.parametrize("row", rows("gdp_delta"), ids=lambda row: f"mu{row['mu']}-eps{row['eps']}")
def test_the_divergence_of_a_gaussian_gives_back_its_epsilon(row):
    assert claim({(dp.GaussianDpEvent(1 / row["mu"]), ADD_REMOVE): 1}, row["delta"]) == pytest.approx(row["eps"])


def test_plain_gaussian_answers_of_unlike_noise_merge_exactly():
    history = {(dp.GaussianDpEvent(3.0), ADD_REMOVE): 4, (dp.GaussianDpEvent(6.0), ZERO_OUT): 9}
    together = (4 / 9 + 9 / 36) ** -0.5
    assert claim(history, 1e-6) == pytest.approx(claim({(dp.GaussianDpEvent(together), ADD_REMOVE): 1}, 1e-6))


def test_replacing_a_contribution_doubles_the_sensitivity_of_gaussian_noise():
    trap = values("gaussian_relation_trap")
    assert claim({(dp.GaussianDpEvent(1.0), REPLACE): 1}, 1e-5) == pytest.approx(trap["PLD_REPLACE_ONE"], rel=1e-3)
    assert claim({(dp.GaussianDpEvent(1.0), REPLACE): 1}, 1e-5) > 2 * trap["RDP_REPLACE_ONE"]


# --- randomised response ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", rows("randomized_response_composition"), ids=lambda row: f"eps{row['eps_per_response']:.3g}-T{row['T']}"
)
def test_fresh_answers_cost_the_exact_trinomial_sum(row):
    bound = randomized_response_total(row["eps_per_response"], row["domain"], row["T"], row["delta"])
    assert row["exact_trinomial"] * (1 - 1e-9) <= bound.epsilon <= row["exact_trinomial"] * (1 + 1e-4)
    assert bound.epsilon == pytest.approx(row["dp_accounting_PLD_self_compose"], rel=2e-3)
    assert bound.epsilon <= min(row["basic"], row["kov"])
    assert bound.lower <= row["exact_trinomial"] * (1 + 1e-9)


@pytest.mark.parametrize("row", rows("randomized_response"), ids=lambda row: f"alpha{row['alpha']}-k{row['k']}")
def test_randomised_response_once_ten_and_a_hundred_times(row):
    kind = (dp.RandomizedResponseDpEvent(1 - row["alpha"], row["k"]), REPLACE)
    assert claim({kind: 1}, 0.0) == pytest.approx(row["closed_form"])
    assert claim({kind: 10}, 0.0) == pytest.approx(row["pure_T10"])
    assert claim({kind: 1}, 1e-5) == pytest.approx(row["dp_accounting_pld_eps_delta1e-5"], rel=2e-4)
    assert claim({kind: 10}, 1e-5) == pytest.approx(row["pld_T10_delta1e-5"], rel=2e-4)
    assert claim({kind: 100}, 1e-5) == pytest.approx(row["pld_T100_delta1e-5"], rel=2e-4)


def test_the_count_bug_of_dp_accounting_is_not_inherited():
    total = randomized_response_total(3.0, 99, 100, 1e-5).epsilon
    assert total == pytest.approx(101.72, abs=0.01)
    noise = 99 / (98 + math.exp(3))
    theirs = dp.pld.PLDAccountant(REPLACE).compose(dp.RandomizedResponseDpEvent(noise, 99), 100).get_epsilon(1e-5)
    assert theirs < 3  # still the bug; once it is fixed upstream this line may go


@pytest.mark.parametrize(
    ("epsilon_0", "domain", "answers", "total"),
    [(3.0, 99, 10, 23.448), (3.0, 299, 100, 55.54), (1.0, 100, 100, 10.841), (0.1, 100, 100, 0.5901)],
)
def test_the_composition_numbers_of_the_fedsampling_notes(epsilon_0, domain, answers, total):
    assert randomized_response_total(epsilon_0, domain, answers, 1e-5).epsilon == pytest.approx(total, rel=2e-3)


def test_the_answers_of_the_fedsampling_notebooks_and_eight_thousand_of_them():
    assert randomized_response_total(math.log(100), 99, 100, 1e-5).epsilon == pytest.approx(326.81, rel=1e-4)
    thousands = randomized_response_total(math.log(700), 699, 8000, 0.0)
    assert thousands.epsilon == pytest.approx(8000 * math.log(700))
    assert randomized_response_total(math.log(700), 699, 8000, 1e-5).epsilon < thousands.epsilon


def test_the_trinomial_sum_computed_by_hand():
    """Direct convolution of the loss (+e, 0, -e) and a root search, without transforms or grids."""
    epsilon_0, domain, answers, delta = 0.8, 7, 60, 1e-6
    other = 1 / (math.exp(epsilon_0) + domain - 1)
    one = np.array([other, (domain - 2) * other, math.exp(epsilon_0) * other])
    total = np.array([1.0])
    for _ in range(answers):
        total = np.convolve(total, one)
    losses = np.arange(-answers, answers + 1) * epsilon_0
    exact = optimize.brentq(lambda e: (total * np.maximum(0, -np.expm1(e - losses))).sum() - delta, 0, 60, xtol=1e-12)
    assert randomized_response_total(epsilon_0, domain, answers, delta).epsilon == pytest.approx(exact, rel=1e-5)


def excess(epsilon_0, domain, answers, epsilon):
    """The δ that ``answers`` have at ``epsilon``: the trinomial sum in 60 digits."""
    with localcontext(Context(prec=60)):
        odds = Decimal(epsilon_0).exp()
        moves = {1: odds / (odds + domain - 1), -1: 1 / (odds + domain - 1), 0: (domain - 2) / (odds + domain - 1)}
        total = {0: Decimal(1)}
        for _ in range(answers):
            one, total = total, {}
            for (at, mass), (move, probability) in product(one.items(), moves.items()):
                total[at + move] = total.get(at + move, Decimal(0)) + mass * probability
        losses = [(Decimal(epsilon_0) * at - Decimal(epsilon), mass) for at, mass in total.items()]
        return sum((1 - (-loss).exp()) * mass for loss, mass in losses if loss > 0)


@pytest.mark.parametrize("domain", [2, 3, 100, 10**6, 10**12, 10**15, 10**16, 2**64, 2**1000], ids=float)
@pytest.mark.parametrize("epsilon_0", [1e-17, 1e-9, 1e-8, 1e-6, 1e-3, 1.0, 8.0, 32.0, 740.0])
def test_answers_over_any_number_of_values_cost_what_sixty_digits_say(epsilon_0, domain):
    for answers in (1, 5):
        assert randomized_response_total(epsilon_0, domain, answers, 0.0).epsilon == answers * epsilon_0
        for delta in (1e-310, 1e-20, 1e-15, 1e-12, 1e-5):
            bound = randomized_response_total(epsilon_0, domain, answers, delta)
            assert excess(epsilon_0, domain, answers, bound.epsilon * (1 + 1e-12)) <= Decimal(delta) * (1 + NEARLY)
            if bound.lower:
                assert excess(epsilon_0, domain, answers, bound.lower * (1 - 1e-9)) >= Decimal(delta) * (1 - NEARLY)


@pytest.mark.parametrize(("domain", "relation"), list(product([10**12, 10**15, 10**17, 2**64], [REPLACE, ZERO_OUT])))
def test_a_probability_of_a_lie_that_rounds_to_one_hides_no_loss(domain, relation):
    lie = domain * math.exp(-1.0) / (1 + (domain - 1) * math.exp(-1.0))
    pure = 1.0 if relation is REPLACE else math.log(math.e * domain / (math.e + domain - 1))
    assert claim({(dp.RandomizedResponseDpEvent(lie, domain), relation): 5}, 0.0) >= 5 * pure


@pytest.mark.parametrize("per_event", [1e-14, 1e-11, 1e-8])
def test_tiny_losses_beside_large_ones_are_not_lost(per_event):
    noisy, tiny = sampled(0.1, 1.0), (EpsilonDeltaDpEvent(per_event), REPLACE)
    alone, both = claim({noisy: 10}, 1e-20), claim({noisy: 10, tiny: 3}, 1e-20)
    assert alone + (2 * per_event if per_event < 1e-9 else 0) <= both <= alone + 3 * per_event + 1e-6


@pytest.mark.parametrize("delta", [1e-295, 1e-310, 5e-324])
@pytest.mark.parametrize(
    "kind", [sampled(0.1, 1.0), (dp.LaplaceDpEvent(2.0), ADD_REMOVE), (EpsilonDeltaDpEvent(1.0), REPLACE)], ids=str
)
def test_a_delta_at_the_edge_of_numbers_costs_no_less_than_a_larger_one(kind, delta):
    assert claim({kind: 5}, 1e-280) <= claim({kind: 5}, delta) < math.inf


def test_zero_out_randomised_response_matches_the_pins_of_dp_accounting():
    for noise, buckets in ((4 / (3 + math.e), 4),):
        assert claim({(dp.RandomizedResponseDpEvent(noise, buckets), REPLACE): 1}, 0.0) == pytest.approx(1.0)
    for noise, buckets in (((4 - math.e) / 3, 4), (1 / math.e, 2)):
        assert claim({(dp.RandomizedResponseDpEvent(noise, buckets), ZERO_OUT): 1}, 0.0) == pytest.approx(1.0)
    pins = values("randomized_response_dp_accounting_pins")
    rr = dp.RandomizedResponseDpEvent(0.1, 10)
    assert claim({(rr, REPLACE): 1}, 0.0) == pytest.approx(pins["rdp_inf_REPLACE_ONE_noise0_1_k10"])
    assert claim({(rr, ZERO_OUT): 1}, 0.0) == pytest.approx(pins["rdp_inf_REPLACE_SPECIAL_noise0_1_k10"])


@pytest.mark.parametrize("arguments", [(0.0, 10, 1), (1.0, 1, 1), (1.0, 10, -1), (math.nan, 10, 1), (1.0, 2**1001, 1)])
def test_impossible_answers_are_refused(arguments):
    with pytest.raises(PrivacyError, match="positive epsilon"):
        randomized_response_total(*arguments, 1e-5)


# --- one ledger over unlike messages ---------------------------------------------------------------------------------

RR = dp.RandomizedResponseDpEvent(0.5, 10)
JOINT = [
    {sampled(0.1, 1.0, ZERO_OUT): 100, (dp.LaplaceDpEvent(2.0), ZERO_OUT): 5, (RR, ZERO_OUT): 1},
    {sampled(0.1, 1.0, ZERO_OUT): 100},
    {(RR, ZERO_OUT): 1},
    {sampled(0.1, 1.0, REPLACE): 100, (RR, REPLACE): 1},
]


@pytest.mark.parametrize(("history", "row"), list(zip(JOINT, rows("joint_ledger"), strict=True)), ids=str)
def test_joint_histories_cost_what_dp_accounting_finds(history, row):
    bound = epsilon(history, 1e-5)
    assert bound.epsilon == pytest.approx(row["eps"], rel=2e-4)
    assert bound.lower <= row["eps"] * (1 + 1e-4)
    assert bound.upper >= row["eps"] * (1 - 1e-4)


def test_unlike_relations_are_convolved_in_both_directions_not_added():
    """Brute force: all outcomes of a two-answer transcript, one asymmetric message and one symmetric one."""
    rr, zeroed = dp.RandomizedResponseDpEvent(0.6, 3), dp.RandomizedResponseDpEvent(0.3, 4)
    answer = np.array([0.6, 0.2, 0.2])  # value 0 is the truth in world A, value 1 in world B
    other = np.array([0.2, 0.6, 0.2])
    known, blank = np.array([0.775, 0.075, 0.075, 0.075]), np.full(4, 0.25)
    worst = 0.0
    for one, two in (((answer, known), (other, blank)), ((answer, blank), (other, known))):
        upper, lower = (np.multiply.outer(*pair).ravel() for pair in (one, two))
        gap = optimize.brentq(lambda e: np.maximum(0, upper - math.exp(e) * lower).sum() - 0.01, 0, 5)  # noqa: B023
        worst = max(worst, gap)
    both = claim({(rr, REPLACE): 1, (zeroed, ZERO_OUT): 1}, 0.01)
    assert both == pytest.approx(worst, rel=1e-3)
    assert both >= worst * (1 - 1e-9)
    assert both < claim({(rr, REPLACE): 1, (zeroed, REPLACE): 1}, 0.01)


def test_a_mixture_of_gaussian_training_and_one_size_answer_lies_between_its_bounds():
    training, size = {sampled(0.1, 1.0): 100}, {(RR, REPLACE): 1}
    both = claim(training | size, 1e-5)
    assert claim(training, 1e-5) < both < claim(training, 1e-5) + math.log(11)
    as_zeroed = claim({sampled(0.1, 1.0): 100, (RR, ZERO_OUT): 1}, 1e-5)
    assert as_zeroed < both  # replacing a value shows more than blanking it


@pytest.mark.parametrize(("history", "row"), list(zip(JOINT, rows("joint_ledger"), strict=True)), ids=str)
def test_the_certified_interval_holds_dp_accountings_optimistic_and_pessimistic_values(history, row):
    kinds = composed_kinds(history)
    value, _, step = pld_epsilon(kinds, 1e-5, 1e-4)
    bound = _certified_interval(kinds, 1e-5, value, step)
    assert bound.lower <= row["eps"] * (1 + 1e-4)
    assert bound.upper >= row["eps"] * (1 - 1e-4)
    assert bound.upper - bound.lower < 0.005 * row["eps"]


@pytest.mark.parametrize(("noise", "rate", "steps"), [(5e4, 1e-3, 3 * 10**5), (3e8, 1.0, 10**6)])
def test_the_certified_lower_end_is_0_where_steps_that_lose_hardly_anything_lose_less_than_delta_together(
    noise, rate, steps
):
    """On a grid that is as fine as such losses need, the masses that come of rounding outweigh a delta."""
    divergence = steps * rate**2 * math.expm1(noise**-2)  # Kullback-Leibler, by its bound through chi squared
    assert math.sqrt(divergence / 2) < 1e-5  # Pinsker's inequality: the total variation, which is delta at ε = 0
    kinds = {sampled(rate, noise) if rate < 1 else (dp.GaussianDpEvent(noise), ADD_REMOVE): steps}
    value, _, step = pld_epsilon(kinds, 1e-5, 1e-3)
    bound = _certified_interval(kinds, 1e-5, value, step)
    assert bound.lower == 0 <= bound.upper


def test_the_certified_lower_end_is_below_the_exact_value_where_that_is_known():
    for noise in (0.7, 2.0, 20.0):
        exact = dp.get_epsilon_gaussian(noise / 10, 1e-5)  # one hundred answers
        for step in (2.0**-4 / noise, 2.0**-7 / noise):
            kinds = {(dp.GaussianDpEvent(noise), ADD_REMOVE): 100}
            bound = _certified_interval(kinds, 1e-5, 2 * exact, step)
            assert bound.lower <= exact <= bound.estimate * (1 + 1e-9)


@pytest.mark.parametrize("place", [0.05, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_coarse_grid_moves_epsilon_by_no_more_than_its_stated_excess(place, count):
    """Pure mechanisms whose loss falls inside a cell of the coarsest grids: the exact ε at delta 0 is count·loss."""
    delta = 1e-9
    for step in (1.0, 0.5):
        exact = epsilon({(EpsilonDeltaDpEvent(place * step), REPLACE): count}, delta, interval=False).epsilon
        (total,) = compose({(EpsilonDeltaDpEvent(place * step), REPLACE): count}, step, delta)
        moved = total.epsilon(delta * 1.001 + total.escaped)[0] - exact
        assert moved <= rounding_excess(count, step, delta)


# --- T uses of one event are T single ones ---------------------------------------------------------------------------

CONSISTENT = {
    "Gaussian": dp.GaussianDpEvent(4.0),
    "Laplace": dp.LaplaceDpEvent(8.0),
    "RR": dp.RandomizedResponseDpEvent(0.9, 10),
    "Poisson(G)": poisson(0.1, 2.0),
    "Poisson(Lap)": dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(4.0)),
    "WOR(G)": dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(4.0)),
    "Tree": dp.SingleEpochTreeAggregationDpEvent(8.0, 16),
    "zCDP": dp.ZCDpEvent(0.01),
    "Self(RR,3)": dp.SelfComposedDpEvent(dp.RandomizedResponseDpEvent(0.9, 10), 3),
    "NoOp": dp.NoOpDpEvent(),
}
COUNTED = [row for row in rows("accountant_count_consistency") if row["event"] in CONSISTENT and "loop10" in row]


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: f"{row['event']}-{row['relation']}-{row['accountant']}")
def test_ten_uses_cost_what_dp_accounting_finds_for_ten_single_compositions(row):
    event, relation = CONSISTENT[row["event"]], dp.NeighboringRelation[row["relation"]]
    bound = epsilon({(event, relation): 10}, 1e-5)
    if row["accountant"] == "PLD" and row["event"] == "Self(RR,3)":
        event = event.event  # upstream charged ten times one answer, not ten times three
        bound = epsilon({(event, relation): 10}, 1e-5)
    doubled = relation is REPLACE and row["event"] in ("Gaussian", "Laplace")
    if row["accountant"] == bound.accountant and not (doubled and row["accountant"] == "RDP"):
        assert bound.epsilon == pytest.approx(row["loop10"], rel=5e-4, abs=1e-12)
    elif not doubled:
        assert bound.epsilon <= row["loop10"] * (1 + 1e-6)


EVERY_KIND = [
    (dp.GaussianDpEvent(4.0), ADD_REMOVE),
    (dp.GaussianDpEvent(4.0), REPLACE),
    (dp.LaplaceDpEvent(8.0), ADD_REMOVE),
    (DiscreteLaplaceDpEvent(0.1, 2), ADD_REMOVE),
    (dp.RandomizedResponseDpEvent(0.9, 10), REPLACE),
    (dp.RandomizedResponseDpEvent(0.9, 10), ZERO_OUT),
    sampled(0.1, 2.0),
    sampled(0.1, 2.0, REPLACE),
    (dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(4.0)), ADD_REMOVE),
    (dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(4.0)), REPLACE),
    (dp.SingleEpochTreeAggregationDpEvent(8.0, 16), ZERO_OUT),
    (dp.ZCDpEvent(0.01), ADD_REMOVE),
    (EpsilonDeltaDpEvent(0.3, 0.0), REPLACE),
    (EpsilonDeltaDpEvent(0.3, 1e-8), REPLACE),
    (dp.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 120, 4.0), ADD_REMOVE),
    (dp.ComposedDpEvent((dp.LaplaceDpEvent(8.0), dp.GaussianDpEvent(4.0))), ZERO_OUT),
]


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: str(kind)[:70])
def test_composing_t_times_equals_t_single_compositions_for_every_event_type(kind):
    event, relation = kind
    at_once = claim({kind: 6}, 1e-5)
    one_by_one = epsilon([(kind, 1)] * 6, 1e-5, interval=False).epsilon
    nested = dp.SelfComposedDpEvent(dp.ComposedDpEvent([event, dp.SelfComposedDpEvent(event, 2)]), 2)
    assert at_once == one_by_one == epsilon([((nested, relation), 1)], 1e-5, interval=False).epsilon
    assert claim({kind: 1}, 1e-5) < claim({kind: 3}, 1e-5) < at_once


# --- the other event types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("tree_aggregation"), ids=lambda row: f"z{row['z']}-T{row['T']}")
def test_one_tree_costs_the_rdp_bound_and_no_less_than_its_height_in_gaussian_answers(row):
    bound = epsilon({(dp.SingleEpochTreeAggregationDpEvent(row["z"], row["T"]), ZERO_OUT): 1}, row["delta"])
    assert bound.accountant == "RDP"
    assert bound.epsilon == pytest.approx(row["eps"], rel=1e-9)
    assert bound.epsilon > row["gauss_equiv"]


@pytest.mark.parametrize("row", rows("zcdp"), ids=lambda row: f"rho{row['rho']}")
def test_zcdp_costs_the_rdp_bound(row):
    ours = claim({(dp.ZCDpEvent(row["rho"]), ADD_REMOVE): 1}, row["delta"])
    assert ours == pytest.approx(row["rdp_eps"], rel=1e-9)
    assert row["gauss_exact"] < ours < row["bun_steinke_eps"]


@pytest.mark.parametrize("row", rows("laplace"), ids=lambda row: f"b{row['b']}")
def test_laplace_noise_ten_times(row):
    kind = (dp.LaplaceDpEvent(row["b"]), ADD_REMOVE)
    assert claim({kind: 10}, 1e-5) == pytest.approx(row["eps_d1e5"], rel=1e-5)
    assert claim({kind: 10}, 0.0) == pytest.approx(row["pure"])
    assert claim({(dp.LaplaceDpEvent(2 * row["b"]), REPLACE): 10}, 1e-5) == pytest.approx(row["eps_d1e5"], rel=1e-5)


def test_a_pure_mechanism_is_never_charged_more_than_its_worst_case_binary_answer():
    for count in (1, 7, 50):
        binary = dp.RandomizedResponseDpEvent(2 / (1 + math.e), 2)
        assert claim({(EpsilonDeltaDpEvent(1.0), REPLACE): count}, 1e-5) == pytest.approx(
            claim({(binary, REPLACE): count}, 1e-5), rel=2e-4
        )


def test_the_delta_of_a_mechanism_is_spent_in_full():
    history = {(EpsilonDeltaDpEvent(0.1, 1e-6), REPLACE): 9}
    assert math.isfinite(claim(history, 1e-5))
    assert claim(history, 8e-6) == math.inf
    assert claim({(EpsilonDeltaDpEvent(0.1, 1e-6), REPLACE): 9, (dp.ZCDpEvent(0.1), REPLACE): 1}, 8e-6) == math.inf


def test_what_only_renyi_can_price_takes_the_whole_history_along():
    cohort = (dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(4.0)), REPLACE)
    for kind in [
        (RR, REPLACE),
        sampled(0.1, 2.0),
        sampled(0.1, 2.0, REPLACE),
        (EpsilonDeltaDpEvent(0.3, 1e-8), REPLACE),
    ]:
        bound = epsilon({cohort: 10, kind: 5}, 1e-5)
        assert bound.accountant == "RDP"
        assert max(claim({cohort: 10}, 1e-5), claim({kind: 5}, 1e-5)) < bound.epsilon < math.inf


@pytest.mark.parametrize(
    "kind",
    [sampled(0.1, 2.0), (dp.LaplaceDpEvent(8.0), ADD_REMOVE), (RR, REPLACE), (RR, ZERO_OUT)],
    ids=lambda kind: str(kind)[:60],
)
def test_renyi_curves_from_discretised_losses_agree_with_dp_accountings_own(kind):
    accountant = dp.rdp.RdpAccountant(neighboring_relation=kind[1])
    theirs = accountant.compose(kind[0], 20).get_epsilon(1e-7)
    assert renyi_epsilon({kind: 20}, 1e-7) == pytest.approx(theirs, rel=2e-3)


# --- edges -----------------------------------------------------------------------------------------------------------


def test_nothing_costs_nothing():
    for history in ({}, {sampled(0.1, 1.0): 0}, {sampled(0.0, 1.0): 5}, {(dp.NoOpDpEvent(), ADD_REMOVE): 9}):
        assert epsilon(history, 1e-5) == Bound(0.0, "exact", 0.0, 0.0, 0.0, "nothing composed")


def test_no_noise_is_infinite():
    for history in (
        {sampled(0.1, 0.0): 1},
        {(dp.NonPrivateDpEvent(), ADD_REMOVE): 1},
        {(dp.LaplaceDpEvent(0.0), REPLACE): 1},
    ):
        bound = epsilon(history, 1e-5)
        assert (bound.epsilon, bound.lower, bound.upper) == (math.inf, math.inf, math.inf)


def test_rate_one_is_the_plain_mechanism():
    assert claim({sampled(1.0, 2.0): 50}, 1e-3) == claim({(dp.GaussianDpEvent(2.0), ADD_REMOVE): 50}, 1e-3)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 1.5, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(PrivacyError, match="delta is"):
        epsilon({sampled(0.1, 1.0): 1}, delta)


def test_delta_zero_is_finite_for_pure_mechanisms_alone():
    assert claim({sampled(0.1, 1.0): 1}, 0.0) == math.inf
    assert claim({(dp.LaplaceDpEvent(2.0), ADD_REMOVE): 3, (RR, REPLACE): 1}, 0.0) == pytest.approx(1.5 + math.log(11))


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.999])
def test_epsilon_is_never_negative(delta):
    for noise in (2.0, 1e6):
        assert claim({sampled(0.01, noise): 10}, delta) == 0.0


def test_huge_noise_costs_nothing_once_its_total_variation_is_below_delta():
    assert claim({sampled(0.1, 1e6): 100}, 1e-5) == 0.0
    assert 0 < claim({sampled(0.1, 1e3): 100}, 1e-8) < 0.02


@pytest.mark.parametrize("row", rows("opacus_accountant_edge_cases"), ids=named)
def test_where_opacus_breaks_the_claim_is_still_sound_and_tight(row):
    history = [(sampled(q, sigma), count) for sigma, q, count in row["history"]]
    if row["name"] == "q>1":
        with pytest.raises(PrivacyError, match=r"sampling rate is 1\.5"):
            epsilon(history, row["delta"])
        return
    ours = epsilon(history, row["delta"], interval=False).epsilon
    rdp = math.inf if row["rdp"] == "inf" else row["rdp"]
    assert 0 <= ours <= max(0.0, rdp) * (1 + 1e-6)
    if isinstance(row["prv"], float):
        assert max(0.0, row["prv"] - 0.02 - 1e-3 * ours) <= ours <= max(0.0, row["prv"])
    else:  # there Rényi is the best that is known: nothing, everything, or a delta too small for the others
        assert ours == pytest.approx(rdp, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-12, 1e-15, 1e-30])
def test_tiny_deltas_fall_back_on_renyi_and_stay_finite(delta):
    bound = epsilon({sampled(0.01, 1.0): 100}, delta)
    assert bound.epsilon <= dp.rdp.RdpAccountant().compose(poisson(0.01, 1.0), 100).get_epsilon(delta) * (1 + 1e-3)
    assert bound.epsilon > claim({sampled(0.01, 1.0): 100}, 1e-9)


def test_more_uses_and_smaller_deltas_cost_more():
    counts = [
        claim({sampled(0.02, 1.2): count, (RR, REPLACE): 1}, 1e-5) for count in (1, 2, 5, 20, 100, 101, 500, 3000)
    ]
    assert counts == sorted(counts)
    deltas = [claim({sampled(0.02, 1.2): 200}, delta) for delta in (0.1, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-15)]
    assert deltas == sorted(deltas)
    noises = [claim({sampled(0.02, noise): 200}, 1e-5) for noise in (8, 4, 2, 1.1, 1.0, 0.7, 0.5, 0.3)]
    assert noises == sorted(noises)
    rates = [claim({sampled(rate, 1.0): 200}, 1e-5) for rate in (1e-6, 1e-4, 0.01, 0.011, 0.1, 0.5, 0.99, 1.0)]
    assert rates == sorted(rates)


def test_the_central_limit_accountant_is_never_used():
    assert claim({sampled(0.01, 0.5): 100}, 1e-5) > 2 * rows("subsampled_gaussian")[8]["gdp_do_not_claim"]
    sources = Path(privfl.__file__).parent.rglob("*.py")
    assert not [path for path in sources if "GaussianAccountant" in path.read_text(encoding="utf-8")]
