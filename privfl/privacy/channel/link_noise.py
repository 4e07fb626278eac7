"""The random numbers that each link of a chain is handed: none can draw again what another one adds.

Noise hides nothing from whoever can subtract it, and a stream can be restarted by its key. So a link from outside that
adds no noise gets a stream, and at the server a source, of its own: their keys follow from the secret ones and from the
link's place, and nothing leads back. privfl's own links share the stream of the noise, which they take up where it was
left.
"""

from __future__ import annotations

from privfl.privacy.mechanisms.mechanism import Mechanism, ServerNoise
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource, NoiseStream
from privfl.references import shipped


def at_client(place: int, link: Mechanism, noise: NoiseStream) -> NoiseStream:
    """What ``link`` at this ``place`` of its chain may draw from at a client whose noise comes from ``noise``."""
    return noise if _shares(link) else noise.apart("link", place)


def at_server(place: int, link: Mechanism, noise: ServerNoise, label: str, round: int) -> ServerNoise:
    """What ``link`` may draw from at the server in the phase ``label`` of a ``round``, whose noise is ``noise``."""
    key = noise.source.stream("links" + label, round, place).words(KEY_BYTES // 8).tobytes()
    apart = NoiseSource(key, noise.source.reproducible)
    return ServerNoise(noise.stream if _shares(link) else apart.stream("link"), apart)


def _shares(link: Mechanism) -> bool:
    """Whether ``link`` draws from the stream that the noise is drawn from."""
    return link.kind == "noise" or shipped(type(link))
