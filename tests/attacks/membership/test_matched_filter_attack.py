"""Membership by the matched filter: members of one client and of anybody, and what it refuses."""

import pytest

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.membership.matched_filter_attack import MatchedFilter
from attacks.membership.update_attacks import ANOTHER, UNTRAINED, GradientAlignment
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch

CLIENTS = [part(40 * k, 40 * (k + 1)) for k in range(5)]
PUBLIC = part(700, 1000)


@pytest.fixture(scope="module")
def seen():
    return watch(task_of(CLIENTS), rounds=3, epochs=10, learning_rate=0.1)


def test_members_of_a_client_are_found_better_than_by_alignment(seen):
    asked = game(CLIENTS[1], part(240, 600), PUBLIC)
    found = MatchedFilter(client=1).run(seen, asked)
    assert found.metrics["auc"].low > 0.6
    assert found.nulls[ANOTHER]["auc"].low < 0.5
    assert found.metrics["auc"].value > GradientAlignment(client=1).run(seen, asked).metrics["auc"].value


def test_members_of_anybody_are_found(seen):
    everybody = part(0, 200)
    found = MatchedFilter().run(seen, game(everybody, part(240, 700), PUBLIC))
    assert found.metrics["auc"].low > 0.55
    assert set(found.nulls) == {"chance", UNTRAINED}


def test_strangers_are_told_apart_by_chance_alone(seen):
    """Both sides are strangers: the interval of the AUC misses ½ in less than 1 of 10⁶ runs, and the seed is fixed."""
    from attacks.metrics.distinguishing import auc

    asked = game(part(200, 400), part(400, 700), PUBLIC)
    scores, inside = MatchedFilter(client=2).guess(seen, asked).scores, asked.answer("members").numpy()
    found = auc(scores[inside], scores[~inside], confidence=1 - 1e-6)
    assert found.low <= 0.5 <= found.high


def test_what_it_cannot_read_is_said(seen):
    with pytest.raises(ConfigError, match="client 9 sent no 'update'"):
        MatchedFilter(client=9).guess(seen, game(CLIENTS[0], part(240, 400), PUBLIC))
    with pytest.raises(ConfigError, match="needs public data"):
        MatchedFilter().guess(seen, Auxiliary(candidates=CLIENTS[0]))
    with pytest.raises(ConfigError, match="width"):
        MatchedFilter(width=0)
    chain = pf.Privacy(update=(pf.Clip(1.0), pf.SecureSum(mode="ideal")))
    summed = watch(task_of(CLIENTS), privacy=chain, algorithm=pf.FedAvg(weighting="uniform"))
    with pytest.raises(ConfigError, match="only sums were seen"):
        MatchedFilter().guess(summed, Auxiliary(PUBLIC, CLIENTS[0]))
