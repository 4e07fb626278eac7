"""What a client computes in a round: the run as it prepared it from its own copy of the experiment, and one phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.algorithms.fedsampling import FedSampling
from privfl.deploy.agreement import PolicyDiffers
from privfl.deploy.budget import OwnSettings
from privfl.deploy.members import cohort_of, guarded
from privfl.deploy.messages import BadMessage, Message
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import ClientResult, Phase, RoundContext, phases_of
from privfl.errors import ConfigError, PrivacyError
from privfl.experiment import Experiment
from privfl.federation.availability import Always
from privfl.federation.cohorts import SizeWeightedCohort
from privfl.federation.task import Task
from privfl.privacy.accounting.stated import stating_class
from privfl.privacy.accounting.tracker import Planned
from privfl.privacy.noise.source import NoiseSource
from privfl.references import shipped
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.plan import Plan, RunSettings, prepare, with_training
from privfl.simulation.round_costs import RoundCosts
from privfl.simulation.shared_state import SharedState

SLACK = 1.01
"""A target ε is held up to numerical looseness of the search for its noise."""

LEFT_BEHIND = "refused: its code left something behind where a later round would find it"
"""What the server is told of :class:`LeftBehind`."""
_left: list[str] = []
"""What training in this process has changed for good. Whoever finds it later need not change it again."""


class LeftBehind(PrivacyError):
    """Training left something where a later round of this client, or another run, would find it."""


def settings_of(experiment: Experiment, task: Task) -> RunSettings:
    """The run that ``experiment`` asks for, on ``task``, on this party's CPU."""
    return RunSettings(
        task=task,
        algorithm=experiment.algorithm,
        schedule=experiment.schedule,
        training=experiment.training,
        privacy=experiment.privacy,
        cohort=experiment.cohort,
        availability=experiment.availability,
        execution=replace(
            experiment.execution, device="cpu", engine="loop", inside="loop", address=None, gpus=None, workers=1
        ),
        record=(),
    )


@dataclass
class Training:
    """A run as one client has prepared it.

    Args:
        plan: with the client's own rows.
        number: of the client.
        prepared: digest of what its answers depend on, beside requests and noise.
    """

    plan: Plan
    number: int
    prepared: str
    _engine: LoopEngine | None = None

    @classmethod
    def prepare(cls, task: Task, experiment: Experiment, number: int) -> Training:
        """Check the settings as any run does.

        Raises:
            ConfigError: one is impossible.
        """
        asked = settings_of(experiment, task)
        plan = guarded(prepare(asked))
        return cls(plan, number, Fingerprint.of(asked, plan, fresh=True).digest.hex())

    @property
    def target(self) -> OwnSettings | None:
        """The target ε that the experiment promises this client, as a limit on this run: the server finds the noise
        for it, and might find too little."""
        dpsgd = self.plan.privacy.training
        if dpsgd is None or dpsgd.target_epsilon is None or dpsgd.noise_at != "client":
            return None
        epsilon = dpsgd.target_epsilon
        own = epsilon[self.number] if isinstance(epsilon, tuple) else epsilon
        return OwnSettings(self.number, own * SLACK, "sample", self.plan.privacy.target_delta)

    @property
    def rows(self) -> Tensor:
        """The client's rows."""
        return self.plan.task.clients[self.number]

    def round(self, message: Message, kept: Tensors) -> OwnRound:
        """The phase that ``message`` asks for, with what the client has ``kept``.

        Raises:
            BadMessage: the experiment has no such phase or round.
            PolicyDiffers: the cohort of a secure sum is another one than the settings draw.
            ConfigError: the noise that the server calibrated is none.
        """
        meta = message.meta
        number, label, channel = int(meta["round"]), str(meta["label"]), self.plan.channel
        # How many are drawn decides nothing but a secure sum, so nobody else is told it: the draw may be secret.
        asked = int(meta["asked"]) if channel.secure is not None else max(1, channel.usual.asked)
        if not (0 <= number < self.plan.schedule.rounds and 0 < asked <= len(self.plan.task.clients)):
            raise BadMessage(f"the server asks for round {number} with {asked} clients, which this experiment has not")
        cohort = cohort_of(self.plan, number) if channel.secure is not None else None
        if cohort is not None and asked != len(cohort):
            raise PolicyDiffers(
                f"the server asks for a secure sum of {asked} clients in round {number}, and the settings draw "
                f"{len(cohort)}; it is not answered"
            )
        plan = self._calibrated(meta)
        bound = torch.tensor(float(meta["bound"]), dtype=torch.float64)
        state = dict.fromkeys(plan.channel.chain.server_state, bound)
        phases = phases_of(plan.algorithm, plan.channel.in_round(number, asked, state, float(bound)))
        phase = next((phase for phase in phases if phase.label == label), None)
        if phase is not None and phase.channel.refusal:
            raise BadMessage(f"{phase.channel.refusal}; it is not answered")
        if phase is None:
            raise BadMessage(
                f"the server asks for the phase '{label}', which this experiment has not in round {number}"
            )
        received = {
            name.removeprefix("received/"): value
            for name, value in message.tensors.items()
            if name.startswith("received/")
        }
        sends = any(phase.channel.fields for phase in phases)
        told = self._told(plan, received)
        first = phase is phases[0]
        return OwnRound(plan, self.number, number, phase, received, kept, sends, self.engine, told, first, cohort)

    def _told(self, plan: Plan, received: Tensors) -> dict[str, Any]:
        """What the server found before the first round, or from sizes that were told once, and may say once."""
        told: dict[str, Any] = {}
        if plan is not self.plan and plan.privacy.training is not None:
            noise = plan.privacy.training.noise_multiplier
            told["noise_multiplier"] = list(noise) if isinstance(noise, tuple) else noise
        settled = not plan.asks_every_round and type(plan.availability) is Always
        if settled and isinstance(plan.algorithm, FedSampling) and "rate" in received:
            told["sampling rate"] = float(received["rate"])
        return told

    def _calibrated(self, meta: Mapping[str, Any]) -> Plan:
        """The plan with the noise that the server found for a target ε; the client's own budget limits its cost."""
        dpsgd, told = self.plan.privacy.training, meta.get("noise_multiplier")
        if dpsgd is None or dpsgd.target_epsilon is None:
            return self.plan
        if told is None:
            raise ConfigError("the server sends no noise multiplier for the target_epsilon of this experiment")
        noise = tuple(map(float, told)) if isinstance(told, list) else float(told)
        return guarded(with_training(self.plan, replace(dpsgd, target_epsilon=None, noise_multiplier=noise)))

    def engine(self, plan: Plan) -> LoopEngine:
        """The engine that trains, with the channel of ``plan``; the same one as long as the noise stays the same."""
        if self._engine is None or self._engine.channel.dpsgd != plan.channel.dpsgd:
            if self._engine is not None:
                self._engine.__exit__(None, None, None)
            self._engine = LoopEngine(
                plan.task,
                plan.algorithm,
                plan.training,
                plan.channel.usual,
                way=plan.way,
                workers=1,
                precision=plan.execution.precision,
                deterministic=plan.execution.deterministic,
            )
            self._engine.__enter__()  # until the process ends
        return self._engine


@dataclass(frozen=True)
class OwnRound:
    """One phase of a round as one client knows it.

    Args:
        number: of the round.
        received: the broadcast.
        kept: what the client kept of earlier rounds.
        sends: whether any phase of the round sends something.
        told: what the server says with it for the whole run.
        first: whether this is the round's first phase, in which nobody has dropped out yet.
        cohort: whom the settings draw for a secure sum; ``None`` if the server does.
    """

    plan: Plan
    client: int
    number: int
    phase: Phase
    received: Tensors
    kept: Tensors
    sends: bool
    engine: Any
    told: Mapping[str, Any]
    first: bool
    cohort: Collection[int] | None

    def _priced(self) -> RoundCosts:
        training, plan, algorithm = self.plan.training.in_round(self.number), self.plan, self.phase.algorithm
        first = None
        if plan.privacy.training is not None and not shipped(stating_class(algorithm, "plan")):
            unlearnt = plan.algorithm.start(plan.initial.clone())
            first = algorithm.broadcast(plan.algorithm.begin_round(unlearnt, self.number))
        return RoundCosts(self.phase, training, self.received, sends=self.sends, first=first)

    def costs(self) -> list[Planned]:
        """What taking part costs this client."""
        one = np.array([self.client])
        return list(self._priced().of(one, one))

    @property
    def sum(self) -> tuple[int, str, int, bytes]:
        """What tells the secure sum of this phase from others: its round, label, cohort and encoding."""
        coding = self.phase.channel.secure_encoding
        return self.number, self.phase.label, self.phase.channel.asked, b"" if coding is None else coding.digest

    def check_members(self, members: Collection[int]) -> None:
        """Refuse a secure sum over other clients than the round's cohort, or in a later phase what is left of it.

        A server that chose them could take as few as a sum may have, and its accomplices for most of these.

        Raises:
            PolicyDiffers: naming one, or how many they are.
        """
        asked = self.phase.channel.asked
        if len(members) > asked or (self.first and len(members) < asked):
            raise PolicyDiffers(
                f"the server speaks of {asked} clients, and its secure sum is of {len(members)}; no noise share is "
                "sized for two cohorts"
            )
        drawn = range(len(self.plan.task.clients)) if self.cohort is None else self.cohort
        if strangers := set(members) - set(drawn):
            raise PolicyDiffers(
                f"the server's secure sum in round {self.number} is with client {min(strangers)}, whom the settings do "
                "not draw for it; it is not answered"
            )

    def check_factor(self, factor: float, size: float | None) -> None:
        """Refuse a weight for a secure sum that is not what the agreed rule gives this client.

        Whoever weighs one client by 1 and all others by 0 has that one's upload. ``size`` is what this client answered
        about its size, ``None`` if it has not.

        Raises:
            BadMessage: naming it.
        """
        channel, plan = self.phase.channel, self.plan
        if (channel.has_client_level_noise or channel.noise_at_server) and factor != 1.0:
            raise BadMessage(f"the server weighs this client's upload by {factor:g}, and noise is sized for 1")
        own, mechanism = 1.0, plan.privacy.size
        if self.phase.algorithm.weights() == "size" and mechanism is not None:
            if size is None:
                raise BadMessage("the server weighs this client's upload before the client told anything of its size")
            own = float(np.clip(size, mechanism.range.lo, mechanism.range.hi))
        if all(factor != own * times for times in range(1, self._most_times + 1)):
            raise BadMessage(
                f"the server weighs this client's upload by {factor:g}, and {own:g} was agreed; with other weights a "
                "sum would show single uploads"
            )

    @property
    def _most_times(self) -> int:
        """How often one client may count in a round: more than once only where it may be drawn again."""
        cohort = self.plan.cohort
        if isinstance(cohort, SizeWeightedCohort):
            return cohort.size
        return 1 if shipped(type(cohort)) else len(self.plan.task.clients)

    def train(self, noise: NoiseSource) -> ClientResult:
        """Train, hold what passed the door to what was priced, and see that nothing stays behind.

        Raises:
            LeftBehind: parts of one's own left something where the next round would find it, now or before in this
                process; nothing is sent then.
            PrivacyError: more passed the door than was charged; nothing is sent then.
        """
        kept = {self.client: self.kept} if self.kept else {}
        engine, training = self.engine(self.plan), self.plan.training.in_round(self.number)
        before = SharedState(self.plan.task, self.phase, training, self.received, engine.states)
        context = RoundContext(self.number, self.plan.schedule.seed, noise, kept, look=before.look)
        if not before.watches or not _left:  # who has left something need not be asked to train
            try:
                (result,) = engine.train([self.client], self.received, context, self.phase)
            finally:  # a step that fails may have left something first
                _left.extend(before.changed())
        if before.watches and _left:
            raise LeftBehind(
                f"{' and '.join(sorted(set(_left)))} changed while this client trained, outside of what it keeps "
                "between rounds (an attribute of a class, a global, a closure), so that later uploads may hold what no "
                "mechanism covers; this process sends nothing more that such parts made: keep what is needed in the "
                "client's own state (keeps), draw by random_numbers, and start the client anew"
            )
        self._priced().check(self.client, result.log)
        found: ClientResult = result
        return found
