"""How good a federation's models are: on the held-out data, on every client's own, and after personalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.federation.client_index import ClientIndex
from privfl.federation.kinds import KINDS, Headline
from privfl.federation.own_metrics import measured
from privfl.federation.task import Task
from privfl.metrics.fairness import fairness
from privfl.references import shipped

OUTPUTS_AT_ONCE = 1 << 24
"""Outputs that exist at one time where metrics need only a few numbers of each row."""
Outputs = Callable[[Tensor], Tensor]
"""From inputs [n, ...] to a model's outputs [n, ...]."""


class Predictor(Protocol):
    """Anything that computes a model's outputs; every engine does."""

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs [N, ...] of the model ``parameters`` [size] on ``inputs`` [N, ...]."""


def evaluate(
    task: Task,
    algorithm: Algorithm,
    predictor: Predictor,
    server: Tensors,
    client_state: Mapping[int, Tensors],
    notes: list[str] | None = None,
) -> dict[str, float]:
    """Metrics of the server's model or, for an ensemble, of the mean output (probability) of the clients' own models.

    Which they are follows from the kind of task (:data:`privfl.federation.kinds.KINDS`); those of the task's own
    ``metrics`` come after them. Where clients hold rows back (``Task.with_local_tests``) there follow ``local_…``, the
    task's headline metric of the tested model on every client's own test and how it is spread, and ``personal_…``, the
    same of clients' own models.

    Args:
        notes: what the user should know is added here, one sentence each, each once.
    """
    if algorithm.ensemble:
        models = [
            next(iter(_models_of(algorithm, server, client_state[client]).values())) for client in sorted(client_state)
        ]
        tested = _ensemble(task, predictor, models)
    else:
        tested = _model(predictor, algorithm.eval_parameters(server))
    found = _tested(task, tested, notes if notes is not None else [])
    if task.local_tests is None:
        return found
    holders = np.flatnonzero(task.local_tests.sizes)
    if not algorithm.ensemble:
        rows = task.local_tests.rows
        condensed = _condensed(task, tested, task.inputs[rows], task.targets[rows])
        found |= _spread("local", task, holders, _own(task, condensed))
    return found | _personal(task, algorithm, predictor, server, client_state, holders)


def _models_of(algorithm: Algorithm, server: Tensors, own: Tensors) -> Tensors:
    """The personal models of a client that keeps its ``own`` state. An ``algorithm`` from outside gets copies: what it
    wrote into the server's state would be in the next broadcast, without any noise.
    """
    if shipped(type(algorithm)):
        return algorithm.personal(server, own)
    return algorithm.personal(*({name: value.clone() for name, value in one.items()} for one in (server, own)))


def storable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """``metrics`` as JSON can hold them: nothing for what is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _tested(task: Task, outputs: Outputs, notes: list[str]) -> dict[str, float]:
    """All metrics on the held-out rows. A metric of one's own sees the outputs of all of them."""
    kind, inputs, targets = KINDS[task.kind], task.test_inputs, task.test_targets
    if not task.metrics:
        return kind.metrics(_condensed(task, outputs, inputs, targets), targets)
    whole = outputs(inputs)
    return kind.measure(whole, targets) | measured(task.metrics, whole, targets, notes)


def _condensed(task: Task, outputs: Outputs, inputs: Tensor, targets: Tensor) -> Tensor:
    """What the metrics of the task's kind read of the ``outputs`` for ``inputs`` [N, ...]; [N, ...]."""
    condense = KINDS[task.kind].condense
    if condense is None:
        return outputs(inputs)
    step = max(1, OUTPUTS_AT_ONCE // math.prod(task.output_shape))
    parts = zip(torch.split(inputs, step), torch.split(targets, step), strict=True)
    return torch.cat([condense(outputs(some), truth) for some, truth in parts])


def _model(predictor: Predictor, parameters: Tensor) -> Outputs:
    return lambda inputs: predictor.logits(parameters, inputs)


def _ensemble(task: Task, predictor: Predictor, models: list[Tensor]) -> Outputs:
    """The outputs of all ``models`` together; without any, those of a model that knows nothing."""
    kind = KINDS[task.kind]

    def outputs(inputs: Tensor) -> Tensor:
        total = torch.zeros(len(inputs), *task.output_shape, device=inputs.device)
        for parameters in models:
            total += kind.to_mean(predictor.logits(parameters, inputs))
        return kind.from_mean(total / max(len(models), 1))

    return outputs


def _own(task: Task, condensed: Tensor) -> dict[int, Tensor]:
    """What one model made of all local tests, cut by client."""
    assert task.local_tests is not None
    bounds = task.local_tests.offsets
    return {client: condensed[bounds[client] : bounds[client + 1]] for client in range(len(bounds) - 1)}


def _personal(
    task: Task,
    algorithm: Algorithm,
    predictor: Predictor,
    server: Tensors,
    client_state: Mapping[int, Tensors],
    holders: NDArray[np.int64],
) -> dict[str, float]:
    """Metrics of personal models, on each client's own test.

    If clients have several, each one's mean headline metric follows by name, then that of the model that each client's
    validation rows choose, and that of the model that its *test* rows would choose: an upper bound, not a result.
    """
    assert task.local_tests is not None
    first: dict[int, Tensor] = {}
    scores: list[dict[str, float]] = []
    validated: list[float] = []
    headline = task.headline
    score = KINDS[task.kind].scores[headline.name]
    for client in holders.tolist():
        own = {**algorithm.initial_client_state(client), **client_state.get(client, {})}
        models = _models_of(algorithm, server, own)
        if not models:
            return {}
        outputs = {name: _of(task, predictor, model, task.local_tests, client) for name, model in models.items()}
        truth = task.targets[task.local_tests[client]]
        first[client] = next(iter(outputs.values()))
        scores.append({name: score(output, truth) for name, output in outputs.items()})
        if task.local_validations is not None and len(models) > 1:
            validated.append(scores[-1][_choose(task, predictor, models, client)])
    found = _spread("personal", task, holders, first)
    if len(scores[0]) > 1:
        for name in scores[0]:
            found[f"personal_{headline.name}[{name}]"] = float(np.mean([one[name] for one in scores]))
        best = [one[_best(headline, one)] for one in scores]
        found[f"personal_{headline.name}_best_on_test"] = float(np.mean(best))
    if validated:
        found[f"personal_{headline.name}_validated"] = float(np.mean(validated))
    return found


def _choose(task: Task, predictor: Predictor, models: Mapping[str, Tensor], client: int) -> str:
    """The name of the model that is best on ``client``'s validation rows; the first of equals."""
    assert task.local_validations is not None
    rows = task.local_validations[client]
    if len(rows) == 0:
        return next(iter(models))
    score = KINDS[task.kind].scores[task.headline.name]
    scores = {
        name: score(_of(task, predictor, model, task.local_validations, client), task.targets[rows])
        for name, model in models.items()
    }
    return _best(task.headline, scores)


def _best(headline: Headline, scores: Mapping[str, float]) -> str:
    """The name of the best of ``scores``, the first of equals; what is NaN is the worst."""
    sign = 1 if headline.higher_is_better else -1
    return max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else sign * scores[name])


def _of(task: Task, predictor: Predictor, model: Tensor, index: ClientIndex, client: int) -> Tensor:
    """What the metrics read of ``model`` on ``client``'s rows of ``index``."""
    rows = index[client]
    return _condensed(task, _model(predictor, model), task.inputs[rows], task.targets[rows])


def _spread(prefix: str, task: Task, holders: NDArray[np.int64], outputs: Mapping[int, Tensor]) -> dict[str, float]:
    """How the headline metric is spread over clients, and the clients' mean of the other scores."""
    assert task.local_tests is not None
    headline, found = task.headline, {}
    truths = {client: task.targets[task.local_tests[client]] for client in holders.tolist()}
    of_clients = {
        name: [score(outputs[client], truth) for client, truth in truths.items()]
        for name, score in KINDS[task.kind].scores.items()
    }
    values = of_clients.pop(headline.name)
    finite = bool(np.isfinite(values).all())  # a model that has diverged has no spread
    stand_in = values if finite else [0.0] * len(values)
    spread = fairness(stand_in, task.local_tests.sizes[holders], higher_is_better=headline.higher_is_better)
    found[headline.name] = spread.pop("client_average")
    found |= spread
    found[f"{headline.name}_of_clients"] = float(np.mean(stand_in))
    found[f"{headline.name}_deviation"] = float(np.std(stand_in))
    found = {name: value if finite else math.nan for name, value in found.items()}
    found |= {name: float(np.mean(some)) for name, some in of_clients.items()}
    return {f"{prefix}_{name}": value for name, value in found.items()}
