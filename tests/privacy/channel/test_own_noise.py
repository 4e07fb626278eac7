"""Noise from outside is tried before it is believed: mistakes that are easily made claim nothing, right noise does."""

import re
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Cost
from privfl.privacy.channel.own_noise import checked_cover, doubt, on_a_grid
from privfl.privacy.mechanisms.mechanism import Cover
from tests.privacy.channel.own_noises import CLIP, AtClient, AtServer, round_of, run_of


@dataclass(frozen=True)
class Elsewhere(AtServer):
    """Says that clients add it, and adds it at the server."""

    adds_at: ClassVar[str] = "client"


WRONG = {
    "copy": "adds no noise to public numbers",
    "own generator": "adds the same noise under every key",
    "fresh generator": "adds other noise each time under the same key",
    "per step": r"adds noise of standard deviation 0\.[45]\d* to public numbers, and its cover stands for 1;",
    "variance": "",  # 1 here, which is right by chance
    "first half": r"adds noise of standard deviation 0\.[67]\d* to public numbers, and its cover stands for 1;",
    "fails": "could not be tried on public numbers .*has no attribute 'gaussian'",
    "loud": "",
    "": "",
}


@pytest.mark.parametrize("kind", [AtClient, AtServer])
@pytest.mark.parametrize(
    ("length", "mistake"), [*product([7, 5000], WRONG), *product([1], ["copy", "own generator", "per step", ""])]
)
def test_noise_is_believed_that_is_there_comes_from_its_key_and_is_not_too_small(length, mistake, kind):
    pattern = WRONG[mistake]
    found = doubt(kind(mistake), run_of(length))
    assert (not found) if not pattern else found.startswith(kind.__name__)
    assert not pattern or re.search(pattern, found)


def test_noise_on_a_sum_that_rounding_lengthens_has_to_be_as_much_more():
    assert doubt(AtServer(), run_of(5000, 1.5)) == ""
    assert "its cover stands for 1.5" in doubt(AtServerShort(), run_of(5000, 1.5))


@dataclass(frozen=True)
class AtServerShort(AtServer):
    """Forgets what a secure sum's rounding adds."""

    def at_server(self, total, noise, round):
        noise.stream.add_gaussian_(total["update"], self.z * round.bound)


def test_noise_in_another_place_than_is_said_is_none():
    assert "Elsewhere adds no noise" in doubt(Elsewhere(), run_of(64))


def test_privfls_own_noise_and_noise_in_shares_are_not_tried():
    assert doubt(pf.GaussianNoise(0.0), run_of(64)) == doubt(None, run_of(64)) == ""
    assert doubt(pf.SkellamNoise(1.0), run_of(64)) == ""


@pytest.mark.parametrize("place", ["client", "server"])
def test_a_run_claims_nothing_for_noise_that_is_not_there_and_says_why(place):
    kind = AtClient if place == "client" else AtServer
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")

    def statement(link):
        privacy = pf.Privacy(update=[CLIP, link])
        return pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=privacy).statement

    wrong = statement(kind("copy"))
    assert wrong.finite() == {}
    assert f"{kind.__name__} adds no noise to public numbers" in " ".join(str(wrong).split())
    assert "client/public" in statement(kind()).finite()


@dataclass(frozen=True)
class Stating(AtClient):
    """States what it is given to state."""

    stated: object = None

    def cover(self, round):
        return self.stated


GAUSSIAN = GaussianDpEvent(2.0)


@pytest.mark.parametrize("event", [PoissonSampledDpEvent(0.1, GAUSSIAN), LaplaceDpEvent(2.0)])
@pytest.mark.parametrize("place", ["client", "sample"])
def test_a_cost_that_is_another_noises_or_lowered_by_sampling_is_none(event, place):
    costs = {"client": Cost(GAUSSIAN), "sample": Cost(GAUSSIAN), place: Cost(event)}
    found = checked_cover(Stating(stated=Cover(**costs)), round_of(8))
    assert found.client.event is found.sample.event is None


def test_laplace_noise_covers_a_single_number_and_sampling_at_rate_one_lowers_nothing():
    for event, length in ((LaplaceDpEvent(2.0), 1), (PoissonSampledDpEvent(1.0, GAUSSIAN), 8)):
        assert checked_cover(Stating(stated=Cover(Cost(event), Cost(event))), round_of(length)).client.event == event


@pytest.mark.parametrize("stated", [GAUSSIAN, 1.0, Cover(GAUSSIAN, GAUSSIAN)])
def test_what_is_no_cover_is_refused_in_a_sentence(stated):
    with pytest.raises(ConfigError, match=r"Stating\.cover returned .*; return Cover\.gaussian"):
        checked_cover(Stating(stated=stated), round_of(8))


@dataclass(frozen=True)
class Shortening(AtServer):
    """Leaves half of the sum."""

    def at_server(self, total, noise, round):
        super().at_server(total, noise, round)
        if round.number:
            total["update"] = total["update"][::2]


def test_a_sum_of_another_shape_is_refused_in_a_sentence():
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    with pytest.raises(ConfigError, match=r"Shortening\.at_server left \(325,\) numbers of torch\.float64 of the sum"):
        pf.simulate(task, pf.FedAvg("uniform"), rounds=2, privacy=pf.Privacy(update=[CLIP, Shortening()]))


def test_what_own_noise_made_of_an_update_has_no_bits_below_a_public_step():
    """A number far below the noise would leave bits that no other could have left."""
    update = torch.full((4096,), 1e-9)
    noisy = update + torch.from_numpy(np.random.default_rng(0).normal(0, 1.0, 4096)).float()
    step = 2.0**-21
    found = on_a_grid(AtClient(), noisy.clone(), 0.5)
    assert torch.equal(found, (found / step).round() * step)
    assert float((found - noisy).abs().max()) <= step / 2
    assert torch.equal(on_a_grid(pf.GaussianNoise(1.0), noisy, 0.5), noisy)
    small = noisy[noisy.abs() < 2.0**-8]
    assert len(small)
    assert not torch.equal((small / step).round() * step, small)
