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
from privfl.privacy.mechanisms.mechanism import ChannelRound, ChannelRun, Cover
from privfl.privacy.mechanisms.participation import ParticipationPattern

CLIP = pf.Clip(0.5)


def run_of(length, lengthening=1.0):
    return ChannelRun(length, 10.0, ParticipationPattern(10, 1, 1), 0.5, lengthening, CLIP)


def round_of(length):
    return ChannelRound(length, 10.0, ParticipationPattern(10, 1, 1), 0.5, 1.0, CLIP, 0, True)


@dataclass(frozen=True)
class Noise(pf.Mechanism):
    """Gaussian noise as a user writes it, or with a mistake."""

    kind: ClassVar[str] = "noise"
    mistake: str = ""
    z: float = 2.0

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def numbers(self, noise, size, round):
        if self.mistake == "fails":
            return noise.gaussian(size)
        if self.mistake == "own generator":
            return np.random.default_rng(round.number).normal(0, self.z * round.bound, size)
        if self.mistake == "fresh generator":
            return np.random.default_rng().normal(0, self.z * round.bound, size)
        scale = {"per step": 0.5, "variance": self.z * round.bound, "loud": 2.0}.get(self.mistake, 1.0)
        numbers = scale * self.z * round.bound * noise.normal(size)
        if self.mistake == "first half":
            numbers[size // 2 :] = 0
        if self.mistake == "not the last":
            numbers[-1] = 0
        if self.mistake == "loud or not":
            numbers *= 2.0 * (np.arange(size) % 2)
        if self.mistake == "loud or quiet":
            numbers *= np.where(np.arange(size) % 2, 2.0, 0.01)
        if self.mistake == "five":
            numbers = 3 * np.resize(numbers[:5], size)
        if self.mistake == "one twice":
            numbers[0] = numbers[-1]
        if self.mistake == "opposite":
            numbers[: size // 2] = -numbers[size - size // 2 :]
        return numbers


@dataclass(frozen=True)
class WhereSomethingIs(Noise):
    """None for an update of zeros, which then says of itself that it is one, or no number at all."""

    adds_at: ClassVar[str] = "client"

    def at_client(self, update, noise, round):
        if self.mistake == "relative":
            return update + noise.add_gaussian_(update.clone(), self.z * round.bound) / update.norm() * update.norm()
        return update if update.norm() == 0 else noise.add_gaussian_(update, self.z * round.bound)


@dataclass(frozen=True)
class ByTheUpdate(Noise):
    """Scales what it made by how long the update was, or rounds it."""

    adds_at: ClassVar[str] = "client"

    def at_client(self, update, noise, round):
        length = float(update.norm())
        noisy = noise.add_gaussian_(update.clone(), self.z * round.bound)
        if self.mistake == "rounded":
            return noisy.div(0.1).round().mul(0.1)
        return noisy * (1 + length) if self.mistake == "longer" else noisy * 1.5 / (1 + length)


@dataclass(frozen=True)
class Whole(Noise):
    """Whole numbers, of which many are 0 and most are alike, as right noise may be that is no Gaussian one."""

    adds_at: ClassVar[str] = "client"

    def cover(self, round):
        return Cover.nothing("the laws of this noise are left out here")

    def at_client(self, update, noise, round):
        return update + torch.from_numpy(np.rint(self.z * noise.normal(len(update)))).to(update.dtype)


@dataclass(frozen=True)
class AtClient(Noise):
    adds_at: ClassVar[str] = "client"

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def at_client(self, update, noise, round):
        if self.mistake == "copy":
            noise.add_gaussian_(update.double(), self.z * round.bound)
            return update
        return update + torch.from_numpy(self.numbers(noise, len(update), round)).to(update.dtype)


@dataclass(frozen=True)
class AtServer(Noise):
    adds_at: ClassVar[str] = "server"

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.z))

    def at_server(self, total, noise, round):
        numbers = torch.from_numpy(self.numbers(noise.stream, len(total["update"]), round)) * round.lengthening
        if self.mistake == "copy":
            return {**total, "update": total["update"] + numbers}
        total["update"] += numbers
        return None


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


@pytest.mark.parametrize("kind", [AtClient, AtServer])
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("not the last", r"adds no noise to 1 of \d+ numbers"),
        ("loud or not", r"adds no noise to (325|524288) of \d+ numbers"),
        ("loud or quiet", r"adds noise to (325|524288) of \d+ numbers that is far smaller than its cover"),
        ("five", r"adds noise to (645|1048571) of \d+ numbers that another one has already"),
        ("one twice", r"adds noise to 1 of \d+ numbers that another one has already"),
        ("opposite", r"adds noise to (325|5242\d\d) of \d+ numbers that another one has already"),
    ],
)
@pytest.mark.parametrize("length", [650, 2**20])
def test_every_number_has_noise_of_its_own_though_all_together_have_enough(length, mistake, said, kind):
    assert re.search(f"^{kind.__name__} {said}", doubt(kind(mistake), run_of(length)))


@pytest.mark.parametrize("mistake", ["longer", "shorter"])
def test_noise_that_depends_on_the_update_is_not_what_a_gaussian_cover_stands_for(mistake):
    found = doubt(ByTheUpdate(mistake), run_of(650))
    assert "ByTheUpdate adds other noise to another update under the same key" in found


def test_rounding_by_the_tenth_of_the_noise_is_no_dependence():
    assert doubt(ByTheUpdate("rounded"), run_of(650)) == ""


def test_an_update_of_zeros_is_noisy_too():
    assert "adds no noise to 64 of 64 numbers of an update of zeros" in doubt(WhereSomethingIs(), run_of(64))
    assert "makes numbers that are not finite of an update of zeros" in doubt(WhereSomethingIs("relative"), run_of(64))


@pytest.mark.parametrize("length", [64, 2**20])
@pytest.mark.parametrize("z", [0.3, 0.5, 2.0])
def test_numbers_of_discrete_noise_may_be_0_and_alike_by_accident(z, length):
    """Of the smallest nine in ten are 0, so that many numbers have the same 16 draws as others."""
    assert doubt(Whole(z=z), run_of(length)) == ""


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
