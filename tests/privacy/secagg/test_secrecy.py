"""The server sees the sum and nothing else: its view has one distribution for all inputs with the same sum.

Over a ring of 2 or 4 elements this is shown exactly. The mask generator is replaced by a table, every table is tried,
and the views are counted; all keys of the third client, an accomplice, are known. The view holds every masked vector
that was sent, also one that came too late to count, and the table's values for every seed that can be found out from
the shares revealed and those of the accomplice. All other messages are the same bytes whatever the vectors (shown too).
"""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from privfl.privacy.secagg import errors, shamir
from privfl.privacy.secagg.bodies import Request, parse_masked
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.letters import Shares
from privfl.privacy.secagg.masking import on_threads
from privfl.privacy.secagg.messages import Kind, Phase, body_of
from privfl.privacy.secagg.primitives import derive
from tests.privacy.secagg.eavesdropper import Eavesdropper
from tests.privacy.secagg.staging import Stage, a_session, twin

HONEST = (0, 1)
ACCOMPLICE = 2


class Table:
    """A mask generator for vectors of one number: looks seeds up, and remembers which were asked for."""

    def __init__(self):
        self.values = {}
        self.asked = []

    def __call__(self, target, seeds):
        for seed, sign in seeds:
            self.asked.append(seed)
            target += np.array(sign * self.values.get(seed, 1)).astype(target.dtype)


def masked_by(stage, member, number):
    """The masked vector that ``member`` would send for ``number``; the stage stays as it is."""
    data = twin(stage.clients[member]).answer(stage.inbox[member], np.array([number], stage.session.word))
    return int(parse_masked(body_of(data), stage.session)[2][0])


# --- what the server does, or might try ------------------------------------------------------------------------------


def everybody_stays(stage):
    spy = Eavesdropper(stage, [ACCOMPLICE])
    stage.play()
    spy.copy_shares()
    stage.close().play()
    for member in HONEST:
        spy.hear(member, stage.sent[Phase.UNMASK, member])
    return spy


def the_first_is_late(stage):
    """Client 0 counts as dropped, but the server sees its masked vector after all."""
    spy = Eavesdropper(stage, [ACCOMPLICE])
    stage.play(silent=(0,))
    stage.sent[Phase.MASK, 0] = stage.answer(Phase.MASK, 0)
    spy.copy_shares()
    stage.close().play()
    spy.hear(1, stage.sent[Phase.UNMASK, 1])
    return spy


def the_server_asks_twice(stage):
    """First for the sum of all, then as if client 0 had dropped."""
    spy = everybody_stays(stage)
    stage.inbox[1] = stage.from_server(1, Request([1, ACCOMPLICE], [0]).to_bytes(), Kind.REQUEST)
    try:
        spy.hear(1, stage.answer(Phase.UNMASK, 1))
    except errors.SpentClient:
        return spy
    return spy


SCENARIOS = (everybody_stays, the_first_is_late, the_server_asks_twice)

# --- defects, planted to see that these tests find them --------------------------------------------------------------


class NoSelfMask(Client):
    def _masks(self):
        return super()._masks()[1:]


class NoPairMask(Client):
    def _masks(self):
        return super()._masks()[:1]


class OneShareTooFew(Client):
    """Shares its secrets under a threshold one below the session's."""

    def _split(self, holders):
        points = [self.session.points[holder] for holder in holders]
        secrets = (self._mask_key, self._self_seed)
        keys, seeds = (shamir.split(one, self.session.threshold - 1, points, self._entropy) for one in secrets)
        return {holder: Shares(keys[point], seeds[point]) for holder, point in zip(holders, points, strict=True)}


class AnswersTwice(Client):
    """Reveals shares whenever it is asked, so both of one peer."""

    def answer(self, data, vector=None):
        if self._due is not Phase.UNMASK:
            return super().answer(data, vector)
        shares = dict(self._shares)
        try:
            return super().answer(data)
        finally:
            self._shares.update(shares)
            self._due = Phase.UNMASK


DEFECTS = [
    (NoSelfMask, the_first_is_late),
    (NoPairMask, everybody_stays),
    (OneShareTooFew, everybody_stays),
    (OneShareTooFew, the_first_is_late),
    (AnswersTwice, the_server_asks_twice),
]


class Views:
    """The server's views of one session, over all mask tables; vectors are one number of ``bits`` bits."""

    def __init__(self, bits, scenario, make_client=Client, label="views", round=7):
        self.table = Table()
        session = a_session(3, 2, length=1, bits=bits, round=round)
        inputs = {member: np.array([0], session.word) for member in session.members}
        self.stage = Stage(session, inputs, label=label, make_client=make_client, add_masks=self.table)
        self.stage.until(Phase.MASK)
        for member in HONEST:
            masked_by(self.stage, member, 0)
        played = self.stage.fork()
        spy = scenario(played)
        known = spy.seeds()
        self.seeds = sorted(set(self.table.asked) - spy.own_seeds)
        self.known = [seed for seed in self.seeds if seed in known]

    def view(self, values, numbers):
        """What the server sees if the masks are these values and the honest clients' vectors these numbers."""
        self.table.values = values
        masked = tuple(masked_by(self.stage, *pair) for pair in zip(HONEST, numbers, strict=True))
        return masked + tuple(values[seed] for seed in self.known)

    def distribution(self, numbers):
        """How often each view occurs over all tables."""
        ring = range(self.stage.session.largest + 1)
        tables = itertools.product(ring, repeat=len(self.seeds))
        return Counter(self.view(dict(zip(self.seeds, values, strict=True)), numbers) for values in tables)


def alike(scenario, ring):
    """Groups of inputs that the server must not tell apart: same sum; if client 0 is out, same input of client 1."""
    groups = {}
    for numbers in itertools.product(range(ring), repeat=2):
        told = numbers[1] if scenario is the_first_is_late else sum(numbers) % ring
        groups.setdefault(told, []).append(numbers)
    return groups.values()


def shows_nothing_else(views, groups):
    for first, *others in groups:
        distribution = views.distribution(first)
        if any(views.distribution(other) != distribution for other in others):
            return False
    return True


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_views_of_inputs_with_the_same_sum_are_equally_distributed(scenario):
    views = Views(2, scenario)
    assert len(views.seeds) == 3, "one mask between the honest clients, and a self-mask of each"
    assert len(views.known) == 2, "of which unmasking reveals two"
    assert shows_nothing_else(views, alike(scenario, 4))


@pytest.mark.parametrize("bits", [3, 4])
def test_views_over_larger_rings_are_equally_distributed_too(bits):
    views = Views(bits, everybody_stays)
    assert views.distribution((0, 1)) == views.distribution((2**bits - 2, 3))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_views_of_inputs_with_other_sums_are_distinguishable(scenario):
    """So the views hold what there is to see: the sum itself."""
    views = Views(1, scenario)
    first, second = (views.distribution(group[0]) for group in alike(scenario, 2))
    assert first.keys().isdisjoint(second.keys())


@pytest.mark.parametrize(("defect", "scenario"), DEFECTS)
def test_a_planted_defect_makes_the_views_differ(defect, scenario):
    assert shows_nothing_else(Views(1, scenario), alike(scenario, 2))
    assert not shows_nothing_else(Views(1, scenario, make_client=defect), alike(scenario, 2))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_other_messages_are_the_same_bytes_whatever_the_vectors(scenario):
    def other_messages(numbers):
        session = a_session(3, 2, length=1, bits=2)
        vectors = {member: np.array([number], session.word) for member, number in enumerate(numbers)}
        stage = Stage(session, vectors).until(Phase.MASK)
        scenario(stage)
        commitments = [stage.sent[Phase.MASK, member][60:92] for member in HONEST]
        return {key: data for key, data in stage.sent.items() if key[0] is not Phase.MASK}, commitments

    assert other_messages((0, 1, 3)) == other_messages((3, 2, 3))


# --- two sessions ----------------------------------------------------------------------------------------------------


class SeedsOutliveSessions(Client):
    """Derives the masks between peers from their keys alone."""

    def _agree(self, server, peers):
        super()._agree(server, peers)
        for peer, one in peers.items():
            seed = derive(self._channel.agree(one.channel), b"", b"")
            self._keys[peer] = dataclasses.replace(self._keys[peer], seed=seed)
            self._pair_seeds[peer] = seed


@pytest.mark.parametrize(
    ("make_client", "labels", "scenario", "secret"),
    [
        (Client, ("first", "second"), everybody_stays, True),
        (Client, ("first", "second"), the_first_is_late, True),
        (Client, ("same", "same"), everybody_stays, True),
        (Client, ("same", "same"), the_first_is_late, False),
        (SeedsOutliveSessions, ("first", "second"), everybody_stays, True),
        (SeedsOutliveSessions, ("same", "same"), everybody_stays, False),
    ],
)
def test_two_sessions_show_two_sums_unless_a_mask_is_used_twice(make_client, labels, scenario, secret):
    """Equal labels: both sessions draw the same keys and seeds, as a generator with a fixed seed would.

    Then the self-masks repeat, and show themselves where they alone protect a late vector. The masks between peers do
    not repeat even then, because their seeds are bound to the session; without that they would.
    """
    sessions = [Views(1, scenario, make_client, label, round) for round, label in enumerate(labels)]
    seeds = sorted({seed for views in sessions for seed in views.seeds})

    def distribution(*inputs):
        counts = Counter()
        for values in itertools.product(range(2), repeat=len(seeds)):
            masks = dict(zip(seeds, values, strict=True))
            counts[tuple(views.view(masks, numbers) for views, numbers in zip(sessions, inputs, strict=True))] += 1
        return counts

    other = (1, 1) if scenario is the_first_is_late else (1, 0)
    assert (distribution((0, 1), (0, 1)) == distribution((0, 1), other)) is secret


# --- the real ring ---------------------------------------------------------------------------------------------------

LENGTH, RUNS, FALSE_ALARM = 4096, 3, 1e-7


def samples(numbers, scenario, make_client=Client):
    """Client 0's vectors under the masks that the server cannot take off: top bytes and bottom bytes."""
    tops, bottoms = [], []
    for run in range(RUNS):
        session = a_session(3, 2, length=LENGTH, round=run)
        vectors = {member: np.full(LENGTH, number, session.word) for member, number in enumerate([*numbers, 5])}
        stage = Stage(session, vectors, label=f"real {run} {numbers}", make_client=make_client).until(Phase.MASK)
        spied = stage.fork()
        known = scenario(spied).seeds()
        body = body_of(spied.sent[Phase.MASK, 0])
        words = parse_masked(body, session)[2].copy()
        taken_off = [(seed, -sign) for seed, sign in masks_of(stage.clients[0]) if seed in known]
        on_threads(1)(words, taken_off)
        tops.append(words >> 24)
        bottoms.append(words & 0xFF)
    return np.concatenate(tops), np.concatenate(bottoms)


def masks_of(client):
    """The seeds that a client is about to use, with their signs."""
    asked = twin(client)
    asked._shares = dict.fromkeys(client.session.members)
    return asked._masks()


def looks_alike(scenario, make_client=Client):
    """Whether two inputs with the same sum give bytes that look uniform, and alike, by chi-square tests.

    Three tests of each of two bytes; each rejects what is true with probability 1e-7, all together below 1e-6.
    """
    first = samples((0, 1 << 31), scenario, make_client)
    second = samples(((1 << 31) - 1, 1), scenario, make_client)
    for one, other in zip(first, second, strict=True):
        counts = [np.bincount(sample, minlength=256) for sample in (one, other)]
        both = np.stack(counts)
        if min(chisquare(count).pvalue for count in counts) < FALSE_ALARM:
            return False
        if chi2_contingency(both[:, both.sum(axis=0) > 0]).pvalue < FALSE_ALARM:
            return False
    return True


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_left_masked_looks_uniform_on_the_real_ring(scenario):
    assert looks_alike(scenario)


@pytest.mark.parametrize(("defect", "scenario"), DEFECTS)
def test_a_planted_defect_does_not_look_uniform_on_the_real_ring(defect, scenario):
    assert not looks_alike(scenario, defect)
