"""Writes down what each observer sees while a run goes on: one file a round, or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from privfl.engine.aggregation import CohortSums
from privfl.engine.workspace import ClientResult, Phase
from privfl.errors import DataError
from privfl.federation.availability import Availability
from privfl.federation.cohorts import Cohort
from privfl.federation.task import Task
from privfl.files import UNREADABLE, remove
from privfl.models import NamedModel
from privfl.privacy.accounting.release import OBSERVERS, Observer
from privfl.schema import plain
from privfl.simulation.plan import RunSettings
from privfl.simulation.run_directory import RunDirectory
from privfl.simulation.settings import registries
from privfl.simulation.transcript import (
    FOLDER,
    Exchange,
    PublicFacts,
    SeenRound,
    Tensors,
    Transcript,
    digests_of,
    encode_facts,
    encode_round,
    facts_named_by,
    read_round,
    recorded_rounds,
)

SERVERS_VIEW = "The run directory holds the server's transcript: whoever gets the folder sees what the server saw."


def recorded_observers(record: bool | Observer | Sequence[Observer]) -> tuple[Observer, ...]:
    """Who is recorded: everybody, nobody, or the observer or observers that are named."""
    if isinstance(record, bool):
        return OBSERVERS if record else ()
    named = [record] if isinstance(record, str) else record
    return tuple(name for name in OBSERVERS if name in named)


def public_facts(run: RunSettings) -> PublicFacts:
    """What everybody knows of a run with these settings; the key that fixes its noise is not told."""
    task, algorithm, factory, known = run.task, run.algorithm, run.task.model, registries()
    return PublicFacts(
        dataset=task.name,
        algorithm={**plain(algorithm, known), "name": algorithm.name},
        training=plain(run.training, known),
        privacy=plain(replace(run.privacy, noise_key=None), known),
        cohort=plain(run.cohort, known, Cohort),
        availability=plain(run.availability, known, Availability),
        model=task.model_name,
        model_options=dict(factory.options) if isinstance(factory, NamedModel) else None,
        input_shape=tuple(task.inputs.shape[1:]),
        classes=task.classes,
        clients=len(task.clients),
        rounds=run.schedule.rounds,
        vocabulary=task.vocabulary,
        loss=getattr(task.loss, "__name__", type(task.loss).__name__),
        kind=task.kind,
    )


class Recorder:
    """What the observers of one run see.

    The phases of a round hand over what they handle anyway: :meth:`uploads` what reaches the server from single
    clients (secure aggregation leaves it out), :meth:`exchanged` what a phase began with and came to. :meth:`close`
    ends a round. With a folder every round is one file, written whole, so a killed run resumes to the same transcript,
    and memory holds one round: every upload of the cohort for the server, one model for the public. Without a folder
    all rounds stay in memory.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        facts: PublicFacts,
        directory: RunDirectory | None,
        begin: int,
        task: Task,
    ) -> None:
        """A run that goes on at round ``begin`` writes that round and what follows anew.

        Raises:
            DataError: a round before ``begin`` is missing or damaged, or a file in the folder is no round.
            PrivflError: the disk refuses.
        """
        self.observers = tuple(observers)
        self.facts, self._factory = facts, task.model
        self._directory = directory if observers else None
        self._rounds: list[SeenRound | Path] = []
        self.notes = [SERVERS_VIEW] if self._directory is not None and "server" in observers else []
        self._digests: tuple[str, ...] = ()
        self._uploads: dict[int, Tensors] | None = None
        self._exchanges: list[Exchange] = []
        if self._directory is not None:
            self._open(self._directory, begin)

    def _open(self, directory: RunDirectory, begin: int) -> None:
        """Take the first ``begin`` rounds of the transcript in ``directory`` for what was seen so far.

        Nothing is written or removed before all of them were read, so that what is damaged stays as it was found.
        """
        folder, told = directory.path / FOLDER, encode_facts(self.facts, self.observers)
        paths = recorded_rounds(folder)
        if len(paths) < begin:
            raise DataError(
                f"{folder} holds {len(paths)} rounds, and {begin} are done; restore it, or start anew with another "
                "--out"
            )
        self._digests = _digests_before(folder / "facts.json", digests_of(told))
        for path in paths[:begin]:
            read_round(path, facts=self._digests)
        if begin and facts_named_by(paths[0]) != self._digests[0]:
            told = encode_facts(self.facts, self.observers, self._digests[1])
        directory.make_folder(FOLDER)
        for path in reversed(paths[begin:]):
            remove(path)
        directory.write(f"{FOLDER}/facts.json", told)
        self._rounds += paths[:begin]

    def uploads(self, results: Iterable[ClientResult]) -> Iterator[ClientResult]:
        """``results`` as they pass, each one's upload noted."""
        if "server" not in self.observers:
            yield from results
            return
        self._uploads = {}
        for result in results:
            if result.upload is not None:
                self._uploads[result.client] = _copies(result.upload)
            yield result

    def exchanged(self, phase: Phase, received: Tensors, factors: Mapping[int, float], sums: CohortSums) -> None:
        """Note a phase whose clients ``received`` a broadcast and were weighted by ``factors``: it came to ``sums``."""
        if "server" not in self.observers:
            return
        summed = [item.name for item in phase.channel.sent if item.combine == "sum"]
        sent, model = self._uploads, received["parameters"].dtype
        self._exchanges.append(
            Exchange(
                label=phase.label.strip(),
                broadcast=_copies(received),
                asked=tuple(factors),
                weights=tuple(factors.values()),
                members=tuple(sums.members),
                weight=sums.weight,
                uploads=None if sent is None else {client: sent[client] for client in sums.members},
                total={} if sums.aborted else _copies({name: sums.total[name].to(model) for name in summed}),
            )
        )
        self._uploads = None

    def close(self, number: int, released: Callable[[], Tensor], sizes: Mapping[int, float]) -> None:
        """End round ``number``; the server evaluates ``released()`` [size] after it, ``sizes`` were answered in it.

        A function, because some servers train what they evaluate, which only a recorded run has to wait for.
        """
        if not self.observers:
            return
        seen = SeenRound(number, released().detach().cpu().clone())
        if "server" in self.observers:
            seen = replace(seen, exchanges=tuple(self._exchanges), sizes=dict(sizes))
        self._exchanges = []
        if self._directory is None:
            self._rounds.append(seen)
            return
        name = f"{FOLDER}/round-{number:06d}.npz"
        self._directory.write(name, encode_round(seen, self._digests[0]))
        self._rounds.append(self._directory.path / name)

    def transcript(self) -> Transcript | None:
        """What the most privileged recorded observer saw so far; ``None`` if nobody is recorded."""
        if not self.observers:
            return None
        observer: Observer = "server" if "server" in self.observers else "public"
        return Transcript(self.facts, observer, self._rounds, self._factory, self._digests)


def _digests_before(path: Path, digests: tuple[str, ...]) -> tuple[str, ...]:
    """By what rounds name the facts of these ``digests``: as the file ``path`` has them, if it holds the same facts.

    They may be those of fewer rounds, which an earlier version hashed as well. A damaged file is written anew.
    """
    try:
        found = digests_of(path.read_bytes())
    except UNREADABLE:
        return digests
    return found if found[0] == digests[0] else digests


def _copies(tensors: Tensors) -> Tensors:
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}
