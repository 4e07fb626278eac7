"""A link from outside cannot draw again what hides anybody; privfl's own links draw as ever."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.privacy.channel import link_noise
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.channel.field import Field
from privfl.privacy.mechanisms.mechanism import Mechanism, ServerNoise
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource, NoiseStream

SIZE, LARGE = 1000, 50.0


@dataclass(frozen=True)
class Restarting(Mechanism):
    """Draws from the beginning of every stream and source that it is handed, and subtracts that."""

    kind: ClassVar = "transform"
    where: str = "client"

    def at_client(self, update, noise, round):
        return update - drawn(noise) if self.where == "client" else update

    def at_server(self, total, noise, round):
        if self.where != "client":
            labels = ("server", round.number), ("channel", 0, 0)
            for stream in (noise.stream, *(noise.source.stream(*one) for one in labels)):
                total["update"] -= drawn(stream)


@dataclass(frozen=True)
class Drawing(Mechanism):
    """Draws, and leaves updates and sums as they are."""

    kind: ClassVar = "transform"

    def at_client(self, update, noise, round):
        noise.words(5)
        return update

    def at_server(self, total, noise, round):
        noise.stream.words(5)


@dataclass(frozen=True)
class RestartingBound(pf.Clip):
    """The same as a bound."""

    def norm_bound(self, server):
        return self.max_norm

    def at_client(self, update, noise, round):
        drawn(noise)
        return super().at_client(update, noise, round)

    def at_server(self, total, noise, round):
        total["update"] -= drawn(noise.stream)


def drawn(stream):
    return NoiseStream(stream.key).add_gaussian_(torch.zeros(SIZE), LARGE)


def channel(*links):
    spec = ChannelSpec.of(links, (Field("update"),))
    return spec.for_run(SIZE, 1.0, ParticipationPattern(4, 1, 4), False).in_round(0, 1, {})


def released(*links):
    """What is seen of an update of zeros, after the client and after the server."""
    source, like = NoiseSource.from_key(3), torch.zeros(SIZE)
    stream = source.stream("channel", 0, 0)
    sent = channel(*links).at_client({"update": like.clone()}, stream, like=like, broken=False)
    return channel(*links).at_server(dict(sent), source)["update"]


@dataclass(frozen=True)
class Taking(pf.GaussianNoise):
    """Adds no noise, and subtracts what it can draw of others'."""

    def at_server(self, total, noise, round):
        total["update"] -= drawn(noise.source.stream("channel", 0, 0)) + drawn(noise.stream)

    def cover(self, round):
        return super().cover(round)


CHAINS = {
    "a transform after noise of the client": (pf.Clip(1.0), pf.GaussianNoise(LARGE, at="client"), Restarting()),
    "a transform at the server": (pf.Clip(1.0), Restarting("server"), pf.GaussianNoise(LARGE)),
    "a bound at the server": (RestartingBound(1.0), pf.GaussianNoise(LARGE)),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_link_from_outside_cannot_take_noise_out_again(case):
    assert float(released(*CHAINS[case]).std()) > 1.3 * LARGE  # what it subtracted is noise of its own


@pytest.mark.parametrize("at", ["client", "server"])
def test_noise_has_the_same_bits_whatever_stands_beside_it(at):
    alone = released(pf.Clip(1.0), pf.GaussianNoise(LARGE, at=at))
    assert torch.equal(released(Drawing(), pf.Clip(1.0), pf.GaussianNoise(LARGE, at=at)), alone)


def test_privfls_own_links_share_the_stream_and_all_others_have_one_for_each_place():
    source = NoiseSource.from_key(1)
    stream, link = source.stream("c"), Restarting()
    noise = ServerNoise(stream, source)
    for shipped in (pf.AdaptiveClip(1.0), pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")):
        assert link_noise.at_client(0, shipped, stream) is stream
        assert link_noise.at_server(0, shipped, noise, "", 0).stream is stream
    keys = [link_noise.at_client(place, link, stream).key for place in range(3)]
    for label, round in (("", 0), ("", 1), (" survey", 0)):
        for place in range(3):
            own = link_noise.at_server(place, link, noise, label, round)
            keys += [own.stream.key, own.source.key]
    assert len({*keys, stream.key, source.key}) == len(keys) + 2


def test_a_link_from_outside_that_adds_the_noise_has_a_source_of_its_own_that_all_rounds_share():
    source, taking = NoiseSource.from_key(3), Taking(1.0)
    left = torch.zeros(SIZE)
    total = {"update": drawn(source.stream("channel", 0, 0)) + drawn(source.stream("server", 0))}
    channel(pf.Clip(1.0), taking).at_server(total, source)
    assert float((total["update"] - left).std()) > 1.9 * LARGE  # two of others', and two of its own
    noise = ServerNoise(source.stream("server", 0), source)
    assert link_noise.of_noise(pf.GaussianNoise(1.0), noise, "", 0) is noise
    own = [link_noise.of_noise(taking, noise, "", round) for round in (0, 1)]
    assert own[0].source == own[1].source != source
    assert len({own[0].stream.key, own[1].stream.key, noise.stream.key}) == 3


def test_what_a_client_draws_is_the_same_in_every_process():
    noise = [link_noise.at_client(1, Restarting(), NoiseSource.from_key(1).stream("c")) for _ in range(2)]
    assert noise[0].words(4).tolist() == noise[1].words(4).tolist()


def test_the_stream_of_such_a_link_holds_nothing_that_leads_back():
    stream = NoiseSource.from_key(1).stream("c")
    own = link_noise.at_client(0, Restarting(), stream)
    assert [type(value) for value in vars(own).values() if not isinstance(value, int | None)] == [bytes]


@pytest.mark.parametrize(
    ("link", "idle"),
    [(pf.Clip(1.0), True), (pf.AdaptiveClip(1.0), False), (RestartingBound(1.0), False), (Drawing(), False)],
)
def test_privfls_own_links_that_do_nothing_at_the_server_draw_no_key_there(link, idle):
    assert link_noise.idle_at_server(link) is idle
