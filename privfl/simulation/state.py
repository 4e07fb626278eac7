"""Where a run stands: all that its next round depends on, and nothing else, so that a checkpoint holds it whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from privfl.algorithms.base import Tensors
from privfl.errors import DataError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import SIZE_RESPONSE
from privfl.privacy.sizes.known_sizes import SIZE, Sizes
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.checkpoint import MEND, Checkpoint
from privfl.simulation.health import Health
from privfl.simulation.plan import Plan
from privfl.simulation.repeated_rounds import REPEATED_NOISE
from privfl.simulation.run_directory import Metrics
from privfl.simulation.shared_state import SHARED_STATE
from privfl.simulation.watched_sizes import WatchedSizes


@dataclass
class State:
    """Where a run stands between two rounds.

    Args:
        round: rounds done, the number of the next one.
        server: the server's state.
        kept: what clients keep, by client; who has kept nothing yet is missing.
        ledger: who released what, how often.
        sizes: what clients answered about their sizes.
        metrics: one line for each round done.
        dropped: why uploads were missing, how often.
        health: what is counted to tell whether the run fails.
        failure: why the run as a whole failed, empty until it has ended and if it did not.
        ended: whether the last round has been, so that the last line of metrics is that of an ended run.
        stopped: whether a callback ended it before the last round that was planned.
    """

    round: int
    server: Tensors
    client_state: dict[int, Tensors]
    ledger: Ledger
    sizes: Sizes
    metrics: list[Metrics]
    dropped: Counter[str]
    health: Health
    failure: str = ""
    ended: bool = False
    stopped: bool = False

    @classmethod
    def start(cls, plan: Plan) -> State:
        """Before round 0."""
        ledger = Ledger(len(plan.task.clients), ("update", SIZE, SIZE_RESPONSE, SHARED_STATE, REPEATED_NOISE))
        server = plan.algorithm.start(plan.initial)
        return cls(0, server, {}, ledger, _sizes(plan, ledger, SizeResponses()), [], Counter(), Health())

    def checkpoint(self) -> Checkpoint:
        """The whole state, as a checkpoint stores it."""
        tensors = {f"server/{name}": tensor for name, tensor in self.server.items()}
        for client, own in self.client_state.items():
            tensors |= {f"client_state/{client}/{name}": tensor for name, tensor in own.items()}
        meta = {
            "ledger": self.ledger.state(),
            "sizes": self.sizes.responses.state(),
            "metrics": self.metrics,
            "dropped": dict(self.dropped),
            "health": self.health.state(),
            "failure": self.failure,
            "ended": self.ended,
            "stopped": self.stopped,
        }
        return Checkpoint(self.round, tensors, meta)

    @classmethod
    def load(cls, checkpoint: Checkpoint, plan: Plan) -> State:
        """The state that :meth:`checkpoint` stored, on the device of ``plan``.

        Raises:
            DataError: the checkpoint is not one of this run.
        """
        server: Tensors = {}
        client_state: dict[int, Tensors] = {}
        try:
            for name, tensor in checkpoint.tensors.items():
                kind, path = name.split("/", 1)
                if kind == "server":
                    server[path] = tensor.to(plan.initial.device)
                else:
                    client, own = path.split("/", 1)
                    client_state.setdefault(int(client), {})[own] = tensor.to(plan.initial.device)
            meta = checkpoint.meta
            if not all(isinstance(count, int) for count in dict(meta["dropped"]).values()):
                raise TypeError("'dropped' holds no counts")
            ledger = Ledger.from_state(meta["ledger"])
            sizes = _sizes(plan, ledger, SizeResponses.from_state(meta["sizes"]))
            dropped, health = Counter(meta["dropped"]), Health.from_state(meta["health"])
            told = meta["metrics"], dropped, health, meta["failure"], meta["ended"], meta.get("stopped", False)
            state = cls(checkpoint.round, server, client_state, ledger, sizes, *told)
            wrong = _unfit(state, plan)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            wrong = f"its parts do not fit together ({error})"
        if wrong:
            raise DataError(f"the checkpoint after round {checkpoint.round} is not one of this run: {wrong}; {MEND}")
        return state


def _unfit(state: State, plan: Plan) -> str:
    """Why ``state`` cannot be where a run of ``plan`` stands; empty if it can."""
    clients = len(plan.task.clients)
    if state.round > plan.schedule.rounds:
        return f"the run has {plan.schedule.rounds} rounds"
    if [line["round"] for line in state.metrics] != list(range(state.round)):
        return f"it holds the metrics of {len(state.metrics)} rounds"
    if state.ledger.clients != clients:
        return f"its ledger is of {state.ledger.clients} clients, and the run has {clients}"
    strangers = [client for client in state.client_state if not 0 <= client < clients]
    if strangers:
        return f"client {strangers[0]} keeps something in it, and the run has {clients} clients"
    shape = state.server["parameters"].shape if "parameters" in state.server else None
    if shape is not None and "parameters" in (began := plan.algorithm.start(plan.initial)):
        expected = began["parameters"].shape
        if shape != expected:
            return f"its parameters have shape {tuple(shape)}, and the model has {tuple(expected)}"
    return ""


def _sizes(plan: Plan, ledger: Ledger, responses: SizeResponses) -> Sizes:
    return WatchedSizes(plan.task.clients.sizes, plan.privacy.size, ledger, responses, hidden=plan.hides_weights)
