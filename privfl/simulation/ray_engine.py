"""The Ray engine: long-lived workers on a cluster train the cohort and add it up; the driver does what a server does.

Clipping, noise of clients and partial sums happen at the workers, noise on sums and the ledger at the driver. Sums do
not depend on who adds what, noise depends on its key and labels alone, and every worker runs the loop engine: so the
model, and what is claimed of it, are those of the loop engine on one machine, bit for bit. For the same reason a share
whose worker dies can be trained anew by the others. Where workers stack clients, the driver decides who is stacked with
whom, by the cohort alone: then all this holds of the vectorised engine with as many workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.aggregation import CohortSums, PlainAggregator
from privfl.engine.chunks import chunks_of
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import ClientResult, Phase, RoundContext
from privfl.errors import ConfigError, PrivflError, brief
from privfl.federation.recipe import Recipe
from privfl.privacy.door.batch_plans import private_plan
from privfl.privacy.door.log import DoorLog
from privfl.simulation.fingerprint import versions
from privfl.simulation.plan import Plan
from privfl.simulation.ray_checks import check_same_kind, check_same_run, refuse
from privfl.simulation.ray_cluster import WorkersLost, connected, ray_module
from privfl.simulation.ray_shares import divide
from privfl.simulation.ray_worker import (
    Built,
    Orders,
    Share,
    Worker,
    WorkerParts,
    as_arrays,
    as_tensors,
)

INLINE_BYTES = 1 << 16
"""A broadcast of at most so many bytes goes with each call, which is faster than by way of Ray's store."""
REPLACEMENTS = 3
"""How many workers may die for every one that was asked for, before no more are started."""
BUILD_SECONDS = 600.0
"""How long workers may take to start and to build their tasks."""


@dataclass
class _Remote:
    """The driver's view of a worker: its actor, what it is called, the clients of whom it knows what they keep."""

    actor: Any
    name: str
    speed: float = 1.0
    knows: set[int] = field(default_factory=set)


@contextmanager
def ray_workers(plan: Plan) -> Iterator[RayWorkers | None]:
    """The workers of a run that asks for Ray; ``None`` for any other.

    Raises:
        ConfigError: the run cannot be distributed, there is no cluster, or a worker lacks the data or is of another
            version.
    """
    if plan.execution.engine != "ray":
        yield None
        return
    refuse(plan)
    with connected(plan.execution.address, plan.execution.workers, plan.execution.gpus) as count:
        workers = RayWorkers(plan, min(count, len(plan.task.clients)))
        try:
            yield workers
        finally:
            workers.close()


class RayWorkers:
    """The workers of one run, each an actor of its own."""

    def __init__(self, plan: Plan, count: int) -> None:
        """Start ``count`` workers and let them build their tasks.

        Raises:
            ConfigError: one of them cannot.
        """
        self.ray = ray_module(plan.execution.address)
        assert isinstance(plan.task.recipe, Recipe)
        self._expected = Built.of(plan.task, replace(plan.algorithm), plan.training, plan.channel.usual)
        parts = WorkerParts(
            recipe=plan.task.recipe,
            seed=plan.schedule.seed,
            planned=plan.algorithm.context.planned,
            algorithm=replace(plan.algorithm),
            training=plan.training,
            usual=plan.channel.usual,
            way=plan.way,
            precision=plan.execution.precision,
            device="cpu" if plan.execution.gpus is None else "cuda",
        )
        self._gpus = plan.execution.gpus
        self._parts = self.ray.put(parts)
        self._replacements = REPLACEMENTS * count
        self._coming: list[tuple[Any, Any]] = []
        self.there: list[_Remote] = []
        self.notes: list[str] = []
        try:
            for _ in range(count):
                self._start()
            self._await_all()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers."""
        for actor in [*(one.actor for one in self.there), *(actor for actor, _ in self._coming)]:
            self.ray.kill(actor)
        self.there, self._coming = [], []

    def lose(self, worker: _Remote, round: int, clients: int, error: Exception) -> None:
        """Go on without ``worker``, who was to train ``clients`` in ``round``, and start another one.

        Raises:
            WorkersLost: none is left.
        """
        self.there.remove(worker)
        self.ray.kill(worker.actor)  # one that is merely out of reach must not go on
        self.notes.append(f"{worker.name} died in round {round}; its {clients} clients were trained anew by the others")
        if not self.there:
            raise WorkersLost(
                f"all Ray workers died, the last in round {round} ({brief(str(error), 200)}); the rounds up to the "
                "last checkpoint are kept: go on with resume once the cluster is well"
            )
        if self._replacements > 0:
            self._replacements -= 1
            self._start()

    def welcome(self) -> None:
        """Take in the workers that were started later and are ready by now; one that cannot work is left out."""
        for actor, built in list(self._coming):
            if self.ray.wait([built], timeout=0)[0]:
                self._coming.remove((actor, built))
                try:
                    self.there.append(self._checked(actor, built))
                except (ConfigError, self.ray.exceptions.RayError) as error:
                    self.notes.append(f"a Ray worker could not be replaced: {brief(str(error), 200)}")
                    self._replacements = 0

    def _start(self, actor: Any = None) -> None:
        """Let ``actor``, or one whose process is started now, build its task."""
        needs = {"num_cpus": 1, "num_gpus": self._gpus or 0, "max_restarts": 0, "max_task_retries": 0}
        actor = actor or self.ray.remote(**needs)(Worker).remote()
        self._coming.append((actor, actor.build.remote(self._parts)))

    def _await_all(self) -> None:
        ready, late = self.ray.wait(
            [built for _, built in self._coming], num_returns=len(self._coming), timeout=BUILD_SECONDS
        )
        if late:
            raise ConfigError(
                f"{len(ready)} of {len(self._coming)} Ray workers were ready after {BUILD_SECONDS:g} s; see that the "
                "cluster has free CPUs and memory"
            )
        for actor, built in list(self._coming):
            try:
                self.there.append(self._checked(actor, built))
            except self.ray.exceptions.RayError as error:
                raise ConfigError(
                    f"a Ray worker could not be started ({brief(str(error), 300)}); install privfl "
                    f"{versions().get('privfl', '')} and the modules of your own parts on every node"
                ) from error
            self._coming.remove((actor, built))

    def _checked(self, actor: Any, built: Any) -> _Remote:
        """A worker that was built, if it computes as the driver does and has the same data.

        Raises:
            ConfigError: it does not, or has not.
        """
        about = self.ray.get(actor.about.remote())
        name = f"the Ray worker on {about['host']} (process {about['pid']})"
        check_same_kind(name, about)
        try:
            there: Built = self.ray.get(built)
        except self.ray.exceptions.RayTaskError as error:
            problem = _sentence(error)
            own = "GPU" in problem and self._gpus is not None
            raise ConfigError(f"{name} cannot {'train' if own else 'load the data'}: {problem}") from error
        check_same_run(name, there, self._expected)
        return _Remote(actor, name)


class RayEngine:
    """Trains cohorts on ``workers`` and evaluates models here, with the threads of ``loop``.

    ``chunk``: most clients that a worker stacks, ``None``: it trains them one by one. ``parts``: into how many stacks a
    cohort is divided where they hold it, whoever trains them.
    """

    def __init__(self, loop: LoopEngine, workers: RayWorkers, chunk: int | None = None, parts: int = 1) -> None:
        self.loop, self.workers, self.chunk, self.parts = loop, workers, chunk, parts

    @property
    def notes(self) -> list[str]:
        """What the user should know, one sentence each."""
        return self.loop.notes + self.workers.notes

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` on ``inputs`` [N, ...], in evaluation mode."""
        return self.loop.logits(parameters, inputs)

    def train(
        self, cohort: Iterable[int], received: Tensors, context: RoundContext, phase: Phase | None = None
    ) -> Iterator[ClientResult]:
        """The results of ``cohort`` one by one, trained here: for callbacks, which may ask for what workers keep."""
        return self.loop.train(cohort, received, context, phase)

    def sums(
        self,
        phase: Phase,
        received: Tensors,
        weights: dict[int, float],
        context: RoundContext,
        aggregator: PlainAggregator,
        check: Callable[[int, DoorLog], None],
    ) -> CohortSums:
        """Let workers train all clients with ``weights``, who ``received`` a broadcast, and add their sums up.

        ``check`` is called with every client and its door's log, and raises if more left the client than was charged.

        Raises:
            WorkersLost: no worker is left.
        """
        ray, workers = self.workers.ray, self.workers
        workers.welcome()
        sent = as_arrays(received)
        broadcast = ray.put(sent) if sum(one.nbytes for one in sent.values()) > INLINE_BYTES else sent
        work = {client: self._work(phase, client, received) for client in weights}
        shares: list[Share] = []
        pending: dict[Any, tuple[_Remote, list[int]]] = {}
        stacks = self._stacks(work)

        def submit(clients: list[int]) -> None:
            known = {client: place for place, one in enumerate(workers.there) for client in one.knows}
            speeds, among = [one.speed for one in workers.there], set(clients)
            units = {unit: sum(work[one] for one in stack) for unit, stack in enumerate(stacks) if among & {*stack}}
            homes = {unit: known[stacks[unit][0]] for unit in units if stacks[unit][0] in known}
            for worker, part in zip(list(workers.there), divide(units, speeds, homes), strict=True):
                if part:
                    own = [stacks[unit] for unit in part]
                    orders = self._orders(phase, own, weights, context, worker)
                    key = context.source.key, context.source.reproducible
                    pending[worker.actor.train.remote(*key, broadcast, orders)] = worker, [*orders.weights]

        submit(list(weights))
        while pending:
            for answer in ray.wait(list(pending))[0]:
                worker, clients = pending.pop(answer)
                try:
                    share: Share = ray.get(answer)
                except ray.exceptions.RayTaskError as error:
                    raise _cause(error) from error
                except ray.exceptions.RayError as error:
                    if worker in workers.there:
                        workers.lose(worker, context.number, len(clients), error)
                    submit(clients)
                    continue
                done = sum(work[client] for client in clients) / max(share.seconds, 1e-6)
                worker.speed = done if worker.speed == 1.0 else (worker.speed + done) / 2
                worker.knows |= set(clients) if phase.algorithm.keeps else set()
                workers.notes += share.notes
                shares.append(share)
        return _joined(shares, weights, context, aggregator, check)

    def _stacks(self, work: dict[int, float]) -> list[list[int]]:
        """Who is trained together: those alike in steps and size, by the cohort alone; without ``chunk`` nobody is."""
        if self.chunk is None:
            return [[client] for client in work]
        sizes = self.loop.task.clients.sizes
        ordered = sorted(work, key=lambda client: (-work[client], -int(sizes[client])))
        return chunks_of(ordered, self.chunk, self.parts)

    def _work(self, phase: Phase, client: int, received: Tensors) -> float:
        """Steps that ``client`` takes."""
        training = self.loop.training
        plan = phase.algorithm.plan(private_plan(training, phase.channel.dpsgd, client), received)
        return float(max(1, plan.length(int(self.loop.task.clients.sizes[client]))))

    def _orders(
        self, phase: Phase, stacks: list[list[int]], weights: dict[int, float], context: RoundContext, worker: _Remote
    ) -> Orders:
        clients, states = [client for stack in stacks for client in stack], {}
        if phase.algorithm.keeps:
            for client in clients:
                if client not in worker.knows:
                    states[client] = as_arrays(context.client_state.get(client, {}))
            for other in self.workers.there:
                if other is not worker:
                    other.knows -= set(clients)
        own = {client: weights[client] for client in clients}
        return Orders(context.number, phase.label, phase.channel, own, states, None if self.chunk is None else stacks)


def _joined(
    shares: list[Share],
    weights: dict[int, float],
    context: RoundContext,
    aggregator: PlainAggregator,
    check: Callable[[int, DoorLog], None],
) -> CohortSums:
    """What the ``shares`` come to together; what clients keep goes to the round's ``context``."""
    sums = CohortSums()
    for share in shares:
        for log, clients in share.logs:
            for client in clients:
                check(client, log)
    for share in shares:
        sums.problems.update(share.problems)
        sums.zeroed.update(share.zeroed)
        sums.shared += share.shared
        aggregator.merge(share.aggregator(aggregator, weights))
        for client, state in share.states.items():
            context.client_state[client] = as_tensors(state)
    aggregator.close(sums)
    return sums


def _cause(error: Any) -> Exception:
    """What was raised at a worker, as the loop would have raised it, if it is a sentence for the user."""
    return error.cause if isinstance(error.cause, PrivflError) else error


def _sentence(error: Any) -> str:
    cause = error.cause
    return str(cause) if isinstance(cause, PrivflError) else brief(f"{type(cause).__name__}: {cause}", 300)
