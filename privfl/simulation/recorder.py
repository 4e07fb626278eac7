"""Writes down what each observer sees while a run goes on: one file a round, or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from privfl.engine.aggregation import CohortSums
from privfl.engine.workspace import ClientResult, Phase
from privfl.federation.availability import Availability
from privfl.federation.cohorts import Cohort
from privfl.federation.task import Task
from privfl.models import NamedModel
from privfl.privacy.accounting.release import OBSERVERS, Observer
from privfl.schema import plain
from privfl.simulation.plan import RunSettings
from privfl.simulation.run_directory import write_whole
from privfl.simulation.settings import registries
from privfl.simulation.transcript import (
    FOLDER,
    Exchange,
    PublicFacts,
    SeenRound,
    Tensors,
    Transcript,
    encode_facts,
    encode_round,
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
        self, observers: Sequence[Observer], facts: PublicFacts, run_folder: Path | None, begin: int, task: Task
    ) -> None:
        """A run that goes on at round ``begin`` writes that round and what follows anew."""
        self.observers = tuple(observers)
        self.facts, self._factory = facts, task.model
        self._folder = None if run_folder is None or not observers else run_folder / FOLDER
        self._rounds: list[SeenRound | Path] = []
        self.notes = [SERVERS_VIEW] if self._folder is not None and "server" in observers else []
        self._uploads: dict[int, Tensors] | None = None
        self._exchanges: list[Exchange] = []
        if self._folder is not None:
            write_whole(self._folder / "facts.json", encode_facts(facts, self.observers))
            for path in sorted(self._folder.glob("round-*.npz")):
                if int(path.stem.removeprefix("round-")) < begin:
                    self._rounds.append(path)
                else:
                    path.unlink()

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
        if self._folder is None:
            self._rounds.append(seen)
            return
        path = self._folder / f"round-{number:06d}.npz"
        write_whole(path, encode_round(seen))
        self._rounds.append(path)

    def transcript(self) -> Transcript | None:
        """What the most privileged recorded observer saw so far; ``None`` if nobody is recorded."""
        if not self.observers:
            return None
        observer: Observer = "server" if "server" in self.observers else "public"
        return Transcript(self.facts, observer, self._rounds, self._factory)


def _copies(tensors: Tensors) -> Tensors:
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}
