"""A transcript of the message fields that an attack declares, and of no others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.simulation.transcript import SeenRound, Transcript


class Declared(Transcript):
    """``seen`` without the fields of messages, single or summed, that are not among ``fields``.

    What goes with every message stays: what was broadcast, who took part, the answers about sizes, and the models that
    are released.

    Args:
        attack: name of the attack that declares ``fields``, for the sentence on a field that was held back.
    """

    def __init__(self, seen: Transcript, fields: Collection[str], attack: str) -> None:
        super().__init__(seen.facts, seen.observer, ())
        self._seen, self._fields, self._attack = seen, fields, attack

    def __len__(self) -> int:
        return len(self._seen)

    def _round(self, index: int) -> SeenRound:
        one = self._seen[index]
        exchanges = tuple(
            replace(
                exchange,
                uploads=None
                if exchange.uploads is None
                else {client: self._declared(upload) for client, upload in exchange.uploads.items()},
                total=self._declared(exchange.total),
            )
            for exchange in one.exchanges
        )
        return replace(one, exchanges=exchanges)

    def before_public(self) -> Transcript:
        return self._seen.before_public()

    @property
    def factory(self) -> Callable[[int], nn.Module]:
        return self._seen.factory

    def _declared(self, message: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = {name: value for name, value in message.items() if name in self._fields}
        return _Message(kept, message.keys() - kept.keys(), self._attack)


class _Message(dict[str, Tensor]):
    """A message that says so if a field was held back."""

    def __init__(self, kept: Mapping[str, Tensor], held_back: Collection[str], attack: str) -> None:
        super().__init__(kept)
        self._held_back, self._attack = held_back, attack

    def __missing__(self, name: str) -> Tensor:
        if name in self._held_back:
            raise ConfigError(f"{self._attack} reads '{name}', which its needs do not name; add it to Needs(fields=…)")
        raise KeyError(name)
