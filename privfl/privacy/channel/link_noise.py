"""The random numbers that each link of a chain is handed: none can draw again what another one adds.

Noise hides nothing from whoever can subtract it, and a stream can be restarted by its key. So a link from outside gets
a stream, and at the server a source, of its own, also if it is the one that adds the noise: DP-SGD's comes from the
run's source as well. Their keys follow from the secret ones and from the link's place, and nothing leads back. privfl's
own links share the stream of the noise, which they take up where it was left.
"""

from __future__ import annotations

from privfl.privacy.mechanisms.mechanism import Mechanism, ServerNoise
from privfl.privacy.noise.source import NoiseStream
from privfl.references import shipped


def at_client(place: int, link: Mechanism, noise: NoiseStream) -> NoiseStream:
    """What ``link`` at this ``place`` of its chain may draw from at a client whose noise comes from ``noise``."""
    return noise if shipped(type(link)) else noise.apart("link", place)


def at_server(place: int, link: Mechanism, noise: ServerNoise, label: str, round: int) -> ServerNoise:
    """What ``link`` may draw from at the server in the phase ``label`` of a ``round``, whose noise is ``noise``."""
    apart = noise.source.apart("links" + label, round, place)
    return ServerNoise(noise.stream if shipped(type(link)) else apart.stream("link"), apart)


def idle_at_server(link: Mechanism) -> bool:
    """Whether ``link`` is privfl's own and does nothing at the server, so that a source for it were made in vain."""
    return shipped(type(link)) and type(link).at_server is Mechanism.at_server


def of_noise(link: Mechanism, noise: ServerNoise, label: str, round: int) -> ServerNoise:
    """What the ``link`` that adds the noise draws it from: a source that is the same in every round."""
    if shipped(type(link)):
        return noise
    apart = noise.source.apart("noise")
    return ServerNoise(apart.stream("server" + label, round), apart)
