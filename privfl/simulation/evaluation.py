"""How good a federation's models are: on the held-out data, on every client's own, and after personalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.algorithms.base import Algorithm, Tensors
from privfl.federation.task import ClientIndex, Task
from privfl.metrics.calibration import expected_calibration_error, maximum_calibration_error
from privfl.metrics.classification import classification
from privfl.metrics.fairness import fairness
from privfl.metrics.personalisation import macro_f1
from privfl.metrics.ranking import auroc, top_k_accuracy

MOST_OF_FEW = 5
"""Top-5 accuracy says something where there are more classes than that."""


class Predictor(Protocol):
    """Anything that computes logits; every engine does."""

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [N, classes] of the model ``parameters`` [size] on ``inputs`` [N, ...]."""


def evaluate(
    task: Task, algorithm: Algorithm, predictor: Predictor, server: Tensors, client_state: Mapping[int, Tensors]
) -> dict[str, float]:
    """Metrics of the server's model or, for an ensemble, of the mean soft-max output of the clients' own models.

    Besides loss, accuracy and macro-F1 there are the calibration errors, top-5 accuracy for more than five classes, and
    AUROC for two. Where clients hold rows back (``Task.with_local_tests``) there follow ``local_…``, accuracy of the
    tested model on every client's own test and how it is spread, and ``personal_…``, the same of clients' own models.
    """
    inputs, targets = task.test_inputs, task.test_targets
    tested = server["parameters"] if algorithm.ensemble else algorithm.eval_parameters(server)
    if algorithm.ensemble:
        found = _tested(_ensemble(task, algorithm, predictor, server, client_state), targets)
    else:
        found = _tested(predictor.logits(tested, inputs), targets)
    if task.local_tests is None:
        return found
    holders = np.flatnonzero(task.local_tests.sizes)
    if not algorithm.ensemble:
        rows = task.local_tests.rows
        logits = predictor.logits(tested, task.inputs[rows])
        found |= _spread("local", task, holders, _own(task, logits))
    return found | _personal(task, algorithm, predictor, server, client_state, holders)


def storable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """``metrics`` as JSON can hold them: nothing for what is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _tested(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Metrics of ``logits`` [N, classes]; those of confidence and order are NaN for a model that has diverged."""
    found, classes = classification(logits, targets), logits.shape[1]
    further = {"test_ece": math.nan, "test_mce": math.nan}
    further |= {"test_top5": math.nan} if classes > MOST_OF_FEW else {}
    further |= {"test_auroc": math.nan} if classes == 2 else {}
    if not bool(logits.isfinite().all()):
        return found | further
    probabilities = logits.double().softmax(1)
    further["test_ece"] = expected_calibration_error(probabilities, targets)
    further["test_mce"] = maximum_calibration_error(probabilities, targets)
    if "test_top5" in further:
        further["test_top5"] = top_k_accuracy(logits, targets, MOST_OF_FEW)
    if "test_auroc" in further:
        further["test_auroc"] = auroc(logits[:, 1] - logits[:, 0], targets)
    return found | further


def _ensemble(
    task: Task, algorithm: Algorithm, predictor: Predictor, server: Tensors, client_state: Mapping[int, Tensors]
) -> Tensor:
    total = torch.zeros(len(task.test_inputs), task.classes, device=task.test_inputs.device)
    for client in sorted(client_state):
        own = next(iter(algorithm.personal(server, client_state[client]).values()))
        total += predictor.logits(own, task.test_inputs).softmax(1)
    return (total / max(len(client_state), 1)).clamp_min(1e-12).log()


def _own(task: Task, logits: Tensor) -> dict[int, Tensor]:
    """One model's logits on all local tests, cut by client."""
    assert task.local_tests is not None
    bounds = task.local_tests.offsets
    return {client: logits[bounds[client] : bounds[client + 1]] for client in range(len(bounds) - 1)}


def _personal(
    task: Task,
    algorithm: Algorithm,
    predictor: Predictor,
    server: Tensors,
    client_state: Mapping[int, Tensors],
    holders: NDArray[np.int64],
) -> dict[str, float]:
    """Metrics of personal models, on each client's own test.

    If clients have several, each one's mean accuracy follows by name, then that of the model that each client's
    validation rows choose, and that of the model that its *test* rows would choose: an upper bound, not a result.
    """
    assert task.local_tests is not None
    logits: dict[int, Tensor] = {}
    accuracies: list[dict[str, float]] = []
    validated: list[float] = []
    for client in holders.tolist():
        own = {**algorithm.initial_client_state(client), **client_state.get(client, {})}
        models = algorithm.personal(server, own)
        if not models:
            return {}
        outputs = {name: _logits(task, predictor, model, task.local_tests, client) for name, model in models.items()}
        truth = task.targets[task.local_tests[client]]
        logits[client] = next(iter(outputs.values()))
        accuracies.append({name: _accuracy(output, truth) for name, output in outputs.items()})
        if task.local_validations is not None and len(models) > 1:
            validated.append(accuracies[-1][_choose(task, predictor, models, client)])
    found = _spread("personal", task, holders, logits)
    if len(accuracies[0]) > 1:
        for name in accuracies[0]:
            found[f"personal_accuracy[{name}]"] = float(np.mean([one[name] for one in accuracies]))
        found["personal_accuracy_best_on_test"] = float(np.mean([max(one.values()) for one in accuracies]))
    if validated:
        found["personal_accuracy_validated"] = float(np.mean(validated))
    return found


def _choose(task: Task, predictor: Predictor, models: Mapping[str, Tensor], client: int) -> str:
    """The name of the model that is most accurate on ``client``'s validation rows; the first of equals."""
    assert task.local_validations is not None
    rows = task.local_validations[client]
    if len(rows) == 0:
        return next(iter(models))
    scores = {
        name: _accuracy(_logits(task, predictor, model, task.local_validations, client), task.targets[rows])
        for name, model in models.items()
    }
    return max(scores, key=scores.__getitem__)


def _logits(task: Task, predictor: Predictor, model: Tensor, index: ClientIndex, client: int) -> Tensor:
    return predictor.logits(model, task.inputs[index[client]])


def _accuracy(logits: Tensor, targets: Tensor) -> float:
    return float((logits.argmax(1) == targets).double().mean())


def _spread(prefix: str, task: Task, holders: NDArray[np.int64], logits: Mapping[int, Tensor]) -> dict[str, float]:
    """Mean macro-F1 over clients, and how accuracy is spread over them."""
    assert task.local_tests is not None
    truths = {client: task.targets[task.local_tests[client]] for client in holders.tolist()}
    accuracy = [_accuracy(logits[client], truth) for client, truth in truths.items()]
    spread = fairness(accuracy, task.local_tests.sizes[holders])
    spread["accuracy"] = spread.pop("client_average")
    spread["accuracy_of_clients"] = float(np.mean(accuracy))
    spread["accuracy_deviation"] = float(np.std(accuracy))
    spread["macro_f1"] = float(np.mean([macro_f1(logits[client], truth) for client, truth in truths.items()]))
    return {f"{prefix}_{name}": value for name, value in spread.items()}
