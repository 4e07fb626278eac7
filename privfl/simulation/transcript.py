"""What an observer saw of a run: attacks and audits read this and public data, never clients.

    run = pf.simulate(task, pf.FedAvg(), rounds=10, record=True)
    run.transcript[3].uploads[7]["update"]                      # what client 7 sent in round 3, after the channel
    pf.Transcript.load("runs/fedavg", observer="public")        # the released models and the public facts, no more

The server sees all messages (only sums and who survived, where they are aggregated securely); the public sees the
parameters that the server evaluates after every round. Both know the public facts. On disk a transcript is a folder of
``facts.json`` and one NumPy archive for each round, read without pickle and only when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

from numpy.typing import NDArray
from torch import Tensor, nn

from privfl.errors import ConfigError, DataError
from privfl.models import NamedModel
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.accounting.release import OBSERVERS, Observer
from privfl.simulation.archive import Archive, encode_archive, open_archive

Tensors = dict[str, Tensor]
FOLDER = "transcript"
MEND = "restore it, or record the run again"
EARLIER = "earlier"
"""Where ``facts.json`` holds the digest by which rounds name it that an earlier version of privfl recorded."""


@dataclass(frozen=True)
class PublicFacts:
    """What everybody knows about a run: no client's data had a say in it.

    Args:
        dataset: name of the dataset.
        algorithm, training, privacy, cohort, availability: settings as plain data, ``{"name": …, field: value}``.
        model: name of the network; with ``model_options`` it can be rebuilt. ``None`` in ``model_options`` says that
            the network came from a function of the user's own.
        input_shape: shape of one input without the batch.
        classes, clients, rounds: how many there are (rounds: planned; classes: outputs, for another ``kind``).
        vocabulary: number of token ids; ``None`` unless inputs are tokens.
        loss: name of the loss of one sample.
        kind: of the task.
    """

    dataset: str
    algorithm: dict[str, Any]
    training: dict[str, Any]
    privacy: dict[str, Any]
    cohort: dict[str, Any]
    availability: dict[str, Any]
    model: str
    model_options: dict[str, Any] | None
    input_shape: tuple[int, ...]
    classes: int
    clients: int
    rounds: int
    vocabulary: int | None
    loss: str
    kind: str = "classification"


@dataclass(frozen=True)
class Exchange:
    """One phase of a round before the server: a survey, or training, which comes last.

    Args:
        label: of the phase; empty for training.
        broadcast: what every client of the cohort received.
        asked: the clients that were asked, with their aggregation ``weights``, as far as the server knows them: under
            secure aggregation by size it knows how often each one counts, and of the sizes only the sum.
        members: whose uploads arrived (under secure aggregation: who survived), ascending.
        weight: Σ of the members' weights.
        uploads: by client, what arrived after the client's side of the channel; ``None`` under secure aggregation.
        total: the weighted sums over ``members``, by field, before noise that the server itself adds; fields that the
            server needs from each client are in ``uploads``.
    """

    label: str
    broadcast: Tensors
    asked: tuple[int, ...]
    weights: tuple[float, ...]
    members: tuple[int, ...]
    weight: float
    uploads: dict[int, Tensors] | None
    total: Tensors


@dataclass(frozen=True)
class SeenRound:
    """One round as an observer saw it.

    Args:
        number: from 0.
        released: the parameters [size] that the server evaluates after this round.
        exchanges: the phases, in order; empty before the public.
        sizes: what clients answered about their sizes in this round, as sent; empty before the public.
    """

    number: int
    released: Tensor
    exchanges: tuple[Exchange, ...] = ()
    sizes: dict[int, float] = field(default_factory=dict)

    @property
    def training(self) -> Exchange:
        """The phase in which clients train.

        Raises:
            ConfigError: the public sees no messages.
        """
        if not self.exchanges:
            raise ConfigError("the public sees no messages; read the transcript of the observer 'server'")
        return self.exchanges[-1]

    @property
    def broadcast(self) -> Tensors:
        """What the clients who train received."""
        return self.training.broadcast

    @property
    def uploads(self) -> dict[int, Tensors]:
        """What the clients who trained sent, by client.

        Raises:
            ConfigError: only sums were seen.
        """
        if self.training.uploads is None:
            raise ConfigError(f"round {self.number} was aggregated securely and only sums were seen; attack .total")
        return self.training.uploads

    @property
    def total(self) -> Tensors:
        """The weighted sums over the clients who trained."""
        return self.training.total

    def before_public(self) -> SeenRound:
        """What the public saw of this round."""
        return SeenRound(self.number, self.released)


class Transcript(Sequence[SeenRound]):
    """The rounds that ``observer`` saw, read when they are asked for, and the public facts of the run."""

    def __init__(
        self,
        facts: PublicFacts,
        observer: Observer,
        rounds: Sequence[SeenRound | Path],
        factory: Callable[[int], nn.Module] | None = None,
        digests: Collection[str] = (),
    ) -> None:
        """``rounds`` in order, in memory or as files; ``factory`` builds the network if its name cannot.

        Rounds in files have to belong to the facts that have these ``digests``.
        """
        self.facts, self.observer, self._digests = facts, observer, digests
        self._rounds, self._factory = list(rounds), factory

    @classmethod
    def load(
        cls,
        path: Path | str,
        observer: Observer = "server",
        factory: Callable[[int], nn.Module] | None = None,
    ) -> Transcript:
        """The transcript in the run directory ``path`` (or in ``path`` itself), as ``observer`` saw it.

        Raises:
            ConfigError: nothing was recorded there for ``observer``.
            DataError: the facts cannot be read.
        """
        if observer not in OBSERVERS:
            raise ConfigError(f"the observer is '{observer}'; choose one of {', '.join(OBSERVERS)}")
        folder = Path(path) / FOLDER if (Path(path) / FOLDER).is_dir() else Path(path)
        if not (folder / "facts.json").exists():
            raise ConfigError(
                f"{path} holds no transcript; record one with `privfl run FILE --out FOLDER --set record=true`, or "
                "from Python with simulate(…, record=True, out=…)"
            )
        try:
            told = (folder / "facts.json").read_bytes()
            known = json.loads(told)
            recorded = [str(name) for name in known.pop("observers")]
            known.pop(EARLIER, None)
            facts = PublicFacts(**{**known, "input_shape": tuple(known["input_shape"])})
            digests = digests_of(told)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(f"cannot read {folder / 'facts.json'}: {error}; {MEND}") from error
        if observer not in recorded:
            raise ConfigError(f"{folder} holds what {', '.join(recorded)} saw, not '{observer}'; record it too")
        return cls(facts, observer, recorded_rounds(folder), factory, digests)

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> SeenRound: ...

    @overload
    def __getitem__(self, index: slice) -> list[SeenRound]: ...

    def __getitem__(self, index: int | slice) -> SeenRound | list[SeenRound]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return self._round(index)

    def _round(self, index: int) -> SeenRound:
        found = self._rounds[index]
        if isinstance(found, Path):
            seen = read_round(found, public=self.observer == "public", facts=self._digests)
        else:
            seen = found
        return seen.before_public() if self.observer == "public" else seen

    def __iter__(self) -> Iterator[SeenRound]:
        return (self[place] for place in range(len(self)))

    def before_public(self) -> Transcript:
        """The same run as the public saw it."""
        return Transcript(self.facts, "public", self._rounds, self._factory, self._digests)

    @property
    def factory(self) -> Callable[[int], nn.Module]:
        """Builds the network of the run from a seed of the caller's.

        Raises:
            ConfigError: the network came from a function of the user's own, and none was given to :meth:`load`.
        """
        facts = self.facts
        if self._factory is not None:
            return self._factory
        if facts.model_options is None:
            raise ConfigError(f"the model '{facts.model}' is not a listed one; give Transcript.load a factory for it")
        return NamedModel(facts.model, facts.input_shape, facts.classes, facts.vocabulary, facts.model_options)

    def network(self, parameters: Tensor | None = None) -> nn.Module:
        """The network of the run in evaluation mode, at ``parameters`` [size] if given, else freshly initialised.

        Raises:
            ConfigError: as :attr:`factory`.
        """
        flat = FlatNetwork(self.factory(0))
        if parameters is not None:
            flat.load(parameters)
        return flat.module.eval()


def digests_of(facts: bytes) -> tuple[str, ...]:
    """By what rounds name the ``facts.json`` that they belong to: first by what they do now.

    How many rounds are planned is left out, since a run may be extended; earlier versions hashed the file as it was.

    Raises:
        ValueError, KeyError, AttributeError: these are no facts.
    """
    known = json.loads(facts)
    known.pop("rounds")
    earlier = known.pop(EARLIER, hashlib.sha256(facts).hexdigest())
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest(), str(earlier)


def recorded_rounds(folder: Path) -> list[Path]:
    """The files of the rounds in ``folder``, from round 0 on.

    Raises:
        DataError: one is missing, or the name of a file is not that of a round.
    """
    paths = sorted(folder.glob("round-*.npz"))
    for number, path in enumerate(paths):
        if not re.fullmatch(r"round-\d{6,}\.npz", path.name) or not path.is_file():
            raise DataError(f"{path} is no round of a transcript; remove it, or {MEND}")
        if path.name != _round_name(number):
            raise DataError(f"{folder} holds {path.name} and not {_round_name(number)}, which comes before it; {MEND}")
    return paths


def _round_name(number: int) -> str:
    return f"round-{number:06d}.npz"


def encode_round(seen: SeenRound, facts: str | None = None) -> bytes:
    """``seen`` as a NumPy archive that belongs to the ``facts`` of that digest; equal rounds give equal bytes."""
    arrays: dict[str, NDArray[Any]] = {"released": _array(seen.released)}
    phases = []
    for number, exchange in enumerate(seen.exchanges):
        arrays |= {f"{number}/broadcast/{name}": _array(value) for name, value in exchange.broadcast.items()}
        arrays |= {f"{number}/total/{name}": _array(value) for name, value in exchange.total.items()}
        for client, upload in (exchange.uploads or {}).items():
            arrays |= {f"{number}/upload/{client}/{name}": _array(value) for name, value in upload.items()}
        told = {name: getattr(exchange, name) for name in ("label", "asked", "weights", "members", "weight")}
        phases.append({**told, "secure": exchange.uploads is None})
    sizes = [[client, size] for client, size in seen.sizes.items()]
    return encode_archive({"number": seen.number, "facts": facts, "phases": phases, "sizes": sizes}, arrays)


def read_round(path: Path, *, public: bool = False, facts: Collection[str] = ()) -> SeenRound:
    """The round that :func:`encode_round` described; with ``public`` only the released model is read.

    Raises:
        DataError: it cannot be read, or does not belong to the ``facts`` of these digests.
    """
    with open_archive(path, MEND) as archive:
        meta = archive.meta
        if facts and meta["facts"] not in facts:
            raise DataError(f"{path} does not belong to the facts.json beside it; {MEND}")
        if facts and path.name != _round_name(int(meta["number"])):
            raise DataError(f"{path} holds round {meta['number']}; {MEND}")
        released = archive["released"]
        if public:
            return SeenRound(int(meta["number"]), released)
        exchanges = tuple(_exchange(archive, number, told) for number, told in enumerate(meta["phases"]))
        sizes = {int(client): float(size) for client, size in meta["sizes"]}
        return SeenRound(int(meta["number"]), released, exchanges, sizes)


def facts_named_by(path: Path) -> str | None:
    """The digest by which the round in the file ``path`` names its facts; raises what :func:`read_round` raises."""
    with open_archive(path, MEND) as archive:
        named: str | None = archive.meta["facts"]
        return named


def _exchange(archive: Archive, number: int, told: dict[str, Any]) -> Exchange:
    """Phase ``number`` of a round out of its ``archive``; ``told`` is what the meta data say of it."""
    parts: dict[str, Tensors] = {"broadcast": {}, "total": {}}
    uploads: dict[int, Tensors] = {client: {} for client in told["members"]}
    for name in archive.names:
        place, _, rest = name.partition("/")
        if place != str(number) or not rest:
            continue
        kind, _, key = rest.partition("/")
        tensor = archive[name]
        if kind == "upload":
            client, _, key = key.partition("/")
            uploads[int(client)][key] = tensor
        else:
            parts[kind][key] = tensor
    return Exchange(
        label=told["label"],
        broadcast=parts["broadcast"],
        asked=tuple(told["asked"]),
        weights=tuple(told["weights"]),
        members=tuple(told["members"]),
        weight=float(told["weight"]),
        uploads=None if told["secure"] else uploads,
        total=parts["total"],
    )


def encode_facts(facts: PublicFacts, observers: Sequence[Observer], earlier: str | None = None) -> bytes:
    """``facts.json``: the facts, who is recorded, and the digest by which rounds of an ``earlier`` version name it."""
    told = {"observers": list(observers), **asdict(facts), **({} if earlier is None else {EARLIER: earlier})}
    return (json.dumps(told, indent=2) + "\n").encode()


def _array(value: Tensor) -> NDArray[Any]:
    return value.detach().cpu().numpy()
