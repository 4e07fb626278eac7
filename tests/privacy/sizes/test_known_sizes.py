"""What the server knows of sizes is what clients answered, and every fresh answer is charged."""

import numpy as np
import pytest

from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import SIZE_RESPONSE
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.sizes.known_sizes import EXACT_SIZE, EXACT_SUM, SIZE, Sizes
from privfl.privacy.sizes.local_randomizers import LaplaceSize
from privfl.privacy.sizes.responses import SizeResponses

SOURCE = NoiseSource.from_key(3)
EVERYBODY = np.arange(40)


def known(true, mechanism, *, hidden=False):
    ledger = Ledger(len(true), (SIZE, SIZE_RESPONSE))
    return Sizes(np.asarray(true), mechanism, ledger, SizeResponses(), hidden=hidden), ledger


def answered(true, refresh="once"):
    sizes, ledger = known(true, LaplaceSize(epsilon=1.0, bound=100, refresh=refresh))
    sizes.begin(SOURCE)
    return sizes, ledger


def test_totals_weights_and_what_was_sent_are_functions_of_the_answers():
    """Two federations whose answers agree, of which one was asked when its clients had other sizes."""
    sizes, _ = answered(np.full(40, 50))
    grown, _ = answered(np.full(40, 50))
    grown._true[:] = 90  # clients gain samples after they have answered
    mechanism, answers = sizes.mechanism, np.array([sizes.sent(0)[client] for client in EVERYBODY])
    for one in (sizes, grown):
        assert one.total(EVERYBODY) == mechanism.estimate(answers).value
        assert one.weights(EVERYBODY).tolist() == np.clip(answers, 1, 100).tolist()
        assert one.sent(0) == dict(enumerate(answers.tolist()))
    assert sizes.total(EVERYBODY) != 40 * 50
    assert len(set(answers.tolist())) == 40


def test_every_fresh_answer_is_charged_and_a_replayed_one_is_not():
    sizes, ledger = answered(np.full(40, 50), refresh=2)
    cost = sizes.cost

    def charged():
        found = {}
        for clients, history in ledger.histories("client", "server"):
            found |= dict.fromkeys(clients.tolist(), history.get(cost, 0))
        return [found[client] for client in EVERYBODY]

    assert charged() == [1] * 40
    sizes.ask(1, EVERYBODY, SOURCE)
    assert charged() == [1] * 40
    sizes.ask(2, EVERYBODY[:7], SOURCE)
    assert charged() == [2] * 7 + [1] * 33
    assert sizes.due(3, EVERYBODY).tolist() == list(range(7, 40))


@pytest.mark.parametrize(("hidden", "release"), [(False, EXACT_SIZE), (True, EXACT_SUM)])
def test_exact_sizes_cost_everything_and_say_what_is_told(hidden, release):
    sizes, ledger = known([3, 4], None, hidden=hidden)
    sizes.begin(SOURCE)
    assert ledger.releases == (release,)
    assert release.cost("client", "public").event is None
    assert sizes.total(np.arange(2)) == 7.0
