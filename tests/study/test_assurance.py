"""The first screen says what follows from the statement, rounded against the claim, and nothing else."""

import math
import re

import pytest

from privfl.privacy.accounting.accountant import Bound
from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.accounting.statement import RELATIONS, Cell, Counted, Distribution, Statement
from privfl.privacy.accounting.trade_off import most_accurate, most_found
from privfl.study.assurance import answers, at_most, short, standing, unprotected


def statement(epsilon=1.0, *, released=True, reasons=(), delta=1e-5, **more) -> Statement:
    value = math.inf if reasons else epsilon
    bound = Bound(value, "PLD", 0.0, value, value, "upper bound only")
    releases = (Counted("update", "Gaussian noise 2", 3),) if released else ()
    spread = Distribution(value, value, value, value, value, 0)
    cells = tuple(
        Cell(unit, observer, RELATIONS[unit], bound, releases, tuple(reasons), spread, "")
        for unit in UNITS
        for observer in OBSERVERS
    )
    return Statement(delta, 4, cells, more.pop("fixed", False), **more)


def shares(text):
    return [float(number) / 100 for number in re.findall(r"at most ([0-9.]+)\s%", text)]


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 4.7])
def test_a_claim_becomes_the_two_bounds_of_its_trade_off_function_rounded_up(epsilon):
    for answer in answers(statement(epsilon)):
        found, right = shares(" ".join(answer.sentences))
        assert 0 <= found - most_found(epsilon, 1e-5, 0.01) < 0.00101
        assert 0 <= right - most_accurate(epsilon, 1e-5) < 0.00101
        assert answer.claim.endswith("δ = 1e-05")


def test_there_is_an_answer_for_each_cell_and_a_large_epsilon_promises_no_number():
    told = answers(statement(70.0))
    assert len({(answer.who, answer.asks) for answer in told}) == 4
    assert all("perhaps 100\u00a0%" in sentence for answer in told for sentence in answer.sentences)
    assert all(answer.verdict == "perhaps nearly always: the bound rules out little" for answer in told)


def test_no_claim_is_told_in_words_with_the_statements_reason_and_without_a_number():
    for answer in answers(statement(reasons=["update: sent bare."])):
        assert (answer.kind, answer.claim) == ("open", "")
        assert "“update: sent bare”" in " ".join(answer.sentences)
        assert not re.search(r"ε|∞|%|inf", answer.verdict + " ".join(answer.sentences))


def test_an_observer_whom_nothing_reaches_is_told_from_a_strong_claim():
    for answer in answers(statement(0.0, released=False)):
        assert (answer.kind, answer.claim) == ("nothing", "")


def test_a_claim_that_rests_on_secure_aggregation_says_so_to_the_server_alone():
    for answer in answers(statement(server="the server may lie, with 10 % of a cohort")):
        assert ("secure aggregation" in " ".join(answer.sentences)) == answer.who.startswith("The server")


def test_noise_that_can_be_repeated_forbids_a_release_before_anything_else():
    assert standing(statement(fixed=True))[0].startswith("DO NOT RELEASE")
    assert not any(one.startswith("DO NOT") for one in standing(statement()))
    assert standing(statement(reasons=["update: bare"])) == []


def test_what_is_public_and_every_caveat_stand_among_what_is_not_protected():
    text = " ".join(unprotected(statement(public="Public: 10 classes.", caveats=("delta is large",)), study=False))
    for part in ("Public: 10 classes.", "Delta is large", "accuracy", "timing", "The choice of this run"):
        assert part in text
    assert "The choice of a winner" in " ".join(unprotected(statement(), study=True))


@pytest.mark.parametrize("share", [0.01, 0.0271, 0.5, 0.73106, 0.98999, 0.9901, 0.99971, 0.999999, 1.0])
def test_a_bound_in_print_is_never_below_the_bound(share):
    shown = float(at_most(share).removesuffix("\u00a0%")) / 100
    assert share - 1e-15 <= shown <= min(1.0, share + 0.00101)


def test_a_cell_of_a_table_is_a_bound_with_its_epsilon_or_words():
    assert short(None, 1e-5) == "nothing claimed"
    assert short(1.0, 1e-5) == "≤ 2.8\u00a0% (ε = 1)"
