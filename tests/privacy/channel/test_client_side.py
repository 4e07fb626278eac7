"""What leaves a client: links in their order, a bound that is kept to, and uploads that are broken."""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.privacy.channel.chain import Chain
from privfl.privacy.channel.client_side import BrokenUpload, check_links, pass_links, within_bound
from privfl.privacy.mechanisms.clip import norm, scale_to_norm
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.noise.source import NoiseSource
from tests.lying_tensor import Lying
from tests.privacy.mechanisms.test_mechanism import round_with

BOUND = 2.0


@dataclass(frozen=True)
class Making(Mechanism):
    """Makes ``made`` of every update."""

    kind = "transform"

    made: object

    def at_client(self, update, noise, round):
        return self.made(update) if callable(self.made) else self.made


@dataclass(frozen=True)
class Telling(Mechanism):
    """A bound that sends a number."""

    kind = "bound"
    side_values: ClassVar = {"told": 0.5}

    value: object

    def norm_bound(self, server):
        return BOUND

    def side_report(self, update, round):
        return {"told": self.value, "more": 1.0}


def passed(*links, update=None, broken=False, look=None):
    update = torch.tensor([3.0, 4.0, 0.0, 0.0]) if update is None else update
    return pass_links(Chain.of(links), update, NoiseSource.from_key(1).stream("c"), round_with(), look, broken=broken)


def test_links_act_in_their_order():
    def plus(update):
        return update + 1

    def double(update):
        return update * 2

    assert passed(Making(plus), Making(double))[0].tolist() == [8, 10, 2, 2]
    assert passed(Making(double), Making(plus))[0].tolist() == [7, 9, 1, 1]


@pytest.mark.parametrize("noise", [pf.GaussianNoise(1e-12), pf.GaussianNoise(1e-12, at="client"), pf.TreeNoise(1.0, 1)])
def test_what_noise_is_added_to_keeps_to_the_bound(noise):
    """Hardly any noise, so that what it is added to can be seen."""
    long = Making(lambda update: update * 1e6)
    update, _ = passed(pf.Clip(BOUND), long, noise)
    assert BOUND * (1 - 2e-6) < float(update.double().norm()) <= BOUND * (1 + 1e-9)


def test_without_noise_nothing_is_bounded_behind_the_users_back():
    update, _ = passed(pf.Clip(BOUND), Making(lambda update: update * 10))
    assert float(update.norm()) == pytest.approx(20.0, rel=1e-5)


def test_after_noise_of_the_client_nothing_is_bounded():
    """What is added to noise is bounded; what is made of the sum costs nothing."""
    chain = (pf.Clip(BOUND), pf.GaussianNoise(1e-12, at="client"), Making(lambda update: update * 10))
    assert float(passed(*chain)[0].norm()) == pytest.approx(20.0, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_a_clipped_update_is_left_bit_for_bit_and_a_longer_one_is_shorter_afterwards(dtype, size):
    generator = torch.Generator().manual_seed(size)
    for bound in (1e-3, 0.7, 1e4):
        update = 1e3 * bound * torch.randn(size, generator=generator, dtype=dtype)
        clipped = pf.Clip(bound).at_client(update.clone(), None, None)
        assert within_bound(clipped, bound) is clipped
        kept = update.clone()
        held = within_bound(update, bound)
        assert float(held.double().norm()) <= bound
        assert torch.equal(update, kept), "a mechanism may have kept the tensor"


LARGEST, SMALLEST = torch.finfo(torch.float32).max, 2.0**-149
ORDERS = (LARGEST, 2.95e38, 1e30, 1.0, 1e-30, 1e-42, SMALLEST)


@pytest.mark.parametrize("bound", [1e-25, 1e-6, 3e-3, 1.0, 1e7, 1e25])
@pytest.mark.parametrize("size", [1, 15, 10_000])
def test_whatever_float32_holds_comes_out_within_the_bound(size, bound):
    generator = torch.Generator().manual_seed(size)
    for largest, other in product(ORDERS, repeat=2):
        signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
        whole = torch.full((size,), largest) * signs
        mixed = torch.where(torch.rand(size, generator=generator) < 0.1, whole, torch.tensor(other))
        for update in (whole, mixed, whole * torch.rand(size, generator=generator)):
            length = float(torch.linalg.vector_norm(update.double()))
            for clipped in (within_bound(update, bound), scale_to_norm(update.clone(), bound)):
                held = float(torch.linalg.vector_norm(clipped.double()))
                assert held <= bound
                assert held >= min(length, bound) * (1 - 3e-6)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "Making made a NoneType of an update; let at_client return a plain tensor"),
        (torch.zeros(3), r"Making made an update of shape \(3,\) of one of \(4,\)"),
        (torch.zeros(4, dtype=torch.int8), "Making made an update of torch.int8; return the numbers as float32"),
        (torch.zeros(4, dtype=torch.float16), "torch.float16"),
        (torch.full((4,), float("nan")), "not finite"),
        (torch.full((4,), float("inf")), "not finite"),
    ],
)
@pytest.mark.parametrize("chain", [(), (pf.Clip(BOUND),), (pf.Clip(BOUND), pf.GaussianNoise(1.0))], ids=len)
def test_what_cannot_be_added_up_is_a_broken_upload(made, says, chain):
    with pytest.raises(BrokenUpload, match=says):
        passed(*chain[:1], Making(made), *chain[1:])


@pytest.mark.parametrize("made", [lambda update: update / update.norm(), torch.zeros(3)])
def test_a_broken_upload_counts_as_zeros_whatever_a_transform_makes_of_zeros(made):
    update, _ = passed(Making(made), pf.Clip(BOUND), update=torch.zeros(4), broken=True)
    assert torch.equal(update, torch.zeros(4))


def test_an_infinite_update_cannot_pass_as_one_within_the_bound():
    huge = torch.full((4,), 1e308, dtype=torch.float64)  # its norm overflows
    update, _ = passed(pf.Clip(BOUND), Making(lambda _: huge), pf.GaussianNoise(1e-12), update=torch.zeros(4).double())
    assert float(update.norm()) <= BOUND


def test_numbers_beside_an_update_are_those_declared_within_their_magnitudes():
    assert passed(Telling(0.25))[1] == {"told": 0.25}
    assert passed(Telling(0.25), broken=True)[1] == {"told": 0.0}
    for value in (0.6, -0.6, float("nan")):
        with pytest.raises(BrokenUpload, match=r"Telling sent a 'told' outside of ±0\.5"):
            passed(Telling(value))


def test_a_tensor_that_is_not_contiguous_can_be_noised():
    chain = (pf.Clip(BOUND), Making(lambda update: update.repeat(2)[::2]), pf.GaussianNoise(1.0, at="client"))
    assert passed(*chain)[0].is_contiguous()


def test_a_bound_is_kept_to_exactly_and_only_by_numbers():
    for dtype in (torch.float32, torch.float64):
        update = torch.randn(10_007, generator=torch.Generator().manual_seed(0)).to(dtype)
        exact = norm(update)
        assert within_bound(update, exact) is update
        assert norm(within_bound(update, exact * (1 - 1e-8))) <= exact * (1 - 1e-8)
        for wrong in (math.nan, math.inf, -math.inf):
            update[5] = wrong
            assert within_bound(update, 2 * exact) is not update
    huge, strided = torch.full((3,), 3e38), torch.arange(20.0)[::2]  # squares of the former float32 does not hold
    assert within_bound(huge, 6e38) is huge
    assert within_bound(huge, 5e38) is not huge
    assert within_bound(strided, 1.001 * norm(strided)) is strided
    assert within_bound(strided, 0.999 * norm(strided)) is not strided


@dataclass(frozen=True)
class Peeking(Mechanism):
    """Reads what lies beside its update in memory, and what is written on it and on the round."""

    kind = "transform"
    seen: ClassVar[list[object]] = []

    def at_client(self, update, noise, round):
        self.seen.append((update.untyped_storage().nbytes(), *vars(update), vars(round).get("note")))
        object.__setattr__(round, "note", 1)
        both = torch.cat([update, update])
        both.note = 1
        return both[: len(update)]


AROUND = (Peeking(), pf.Clip(BOUND), pf.GaussianNoise(1.0, at="client"), Peeking())


def test_a_link_from_outside_is_handed_the_update_alone_without_copies_that_have_no_noise():
    Peeking.seen.clear()
    passed(*AROUND, update=torch.ones(8)[:4])
    assert Peeking.seen == [(16, None)] * 2


def test_after_each_and_before_one_is_handed_an_update_with_noise_somebody_looks_at_what_it_may_have_noted():
    looked = []
    passed(*AROUND, look=looked.append)
    assert [AROUND.index(one) if one is AROUND[0] else 3 for one in looked] == [0, 3, 3]


def test_an_update_of_a_kind_of_its_own_is_a_broken_upload():
    with pytest.raises(BrokenUpload, match="made a Lying of an update; let at_client return a plain tensor"):
        passed(Making(lambda update: update.as_subclass(Lying)), pf.Clip(BOUND))


def test_what_is_written_on_an_update_does_not_stand_in_for_its_methods():
    def written(update):
        update.sum = update.numpy = lambda *_: torch.zeros(())
        return 100 * update.as_subclass(torch.Tensor)

    sent, _ = passed(Making(written), pf.Clip(BOUND))
    assert norm(sent) <= BOUND


@dataclass(frozen=True)
class Noting(Mechanism):
    """Makes ``made`` of every update, and notes that it did."""

    kind = "transform"

    made: object
    noted: list

    def at_client(self, update, noise, round):
        self.noted.append(float(update.norm()))
        return self.made(update)


@dataclass(frozen=True)
class NotingBound(Noting):
    kind = "bound"

    def norm_bound(self, server):
        return BOUND


@dataclass(frozen=True)
class NotingNoise(Noting):
    kind = "noise"
    adds_at = "client"


MADE = {
    "shape": (lambda update: update[:10], r"made an update of shape \(10,\) of one of \(650,\); let at_client return"),
    "none": (lambda update: None, "made a NoneType of an update; let at_client return a plain tensor"),
    "type": (lambda update: update.int(), r"made an update of torch\.int32; return the numbers as float32"),
    "finite": (lambda update: update.log(), "makes something that is not finite of 650 public numbers before the run"),
    "fails": (
        lambda update: update @ torch.ones(3),
        r"fails on 650 public numbers before the run \(Runtime.*\); let",
    ),
}


@pytest.mark.parametrize("kind", [Noting, NotingBound, NotingNoise])
@pytest.mark.parametrize("made", MADE)
def test_a_link_of_ones_own_is_tried_before_anybody_trains(kind, made):
    what, told = MADE[made]
    link, rounds = kind(what, []), []
    update = {Noting: (link, pf.Clip(BOUND)), NotingBound: (link,), NotingNoise: (pf.Clip(BOUND), link)}[kind]
    task = pf.load("digits", partition=pf.IID(clients=3), model="logistic")
    with pytest.raises(pf.ConfigError, match=f"{kind.__name__}.* {told}"):
        pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=pf.Privacy(update=update), callbacks=[rounds.append])
    assert (rounds, link.noted) == ([], [])


def test_the_trial_leaves_nothing_and_takes_numbers_within_the_bound():
    norms = []
    link = Making(lambda update: norms.append(float(update.norm())) or update)
    told = replace(round_with(), bound=BOUND)
    check_links(Chain.of([link, pf.Clip(BOUND)]), told, torch.zeros(40))
    check_links(Chain.of([pf.Clip(BOUND)]), told, torch.zeros(40))
    assert norms == [pytest.approx(0.5, rel=1e-5)]


def test_a_side_value_beyond_what_is_declared_is_found_in_the_trial():
    with pytest.raises(pf.ConfigError, match=r"Telling sent a 'told' outside of ±0\.5"):
        check_links(Chain.of([Telling(0.6)]), round_with(), torch.zeros(4))
    check_links(Chain.of([Telling(0.4)]), round_with(), torch.zeros(4))
