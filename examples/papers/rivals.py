"""SuPerFed and the nine methods of its tables, trained alike, every client judged on its own test by its own model."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from landscape import LAMBDAS, along
from superfed import TRAINING, calibration, choices
from torch import Tensor

import privfl as pf
from privfl.algorithms.personal.interpolation import mix
from privfl.simulation.callbacks import Simulation

METHODS: dict[str, Any] = {
    "FedAvg": pf.FedAvg(),
    "FedProx": pf.FedProx(),
    "SCAFFOLD": pf.Scaffold(),
    "Local": pf.Local(),
    "LG-FedAvg": pf.LGFedAvg(),
    "FedPer": pf.FedPer(),
    "APFL": pf.APFL(),
    "pFedMe": pf.PFedMe(),
    "Ditto": pf.Ditto(),
    "FedRep": pf.FedRep(),
    "SuPerFed-MM": pf.SuPerFed(mode="mm", start_fraction=0.4),
    "SuPerFed-LM": pf.SuPerFed(mode="lm", start_fraction=0.6),
}
"""With the authors' L and ν for 100 clients and for noisy labels, and this project's defaults for the rivals."""


def scores(simulation: Simulation, models: dict[int, Tensor]) -> dict[str, float]:
    """Accuracy of ``models`` on their clients' tests, mean and deviation over clients, and calibration, in per cent."""
    task = simulation.task
    assert task.local_tests is not None
    found = []
    for client, model in models.items():
        rows = task.local_tests[client]
        predicted = simulation.engine.logits(model, task.inputs[rows]).argmax(1)
        found.append(100 * float((predicted == task.targets[rows]).double().mean()))
    spread = {"accuracy": round(statistics.mean(found), 3), "deviation": round(statistics.pstdev(found), 3)}
    return spread | calibration(simulation, models)


def judged(simulation: Simulation) -> dict[str, dict[str, float]]:
    """Label → scores of the clients' models after the last round."""
    algorithm, server, task = simulation.algorithm, simulation.server, simulation.task
    fresh = algorithm.initial_client_state
    states = {client: fresh(client) for client in range(len(task.clients))} | dict(simulation.client_state)
    if isinstance(algorithm, pf.SuPerFed):
        shared, own = server["parameters"], {client: kept["personal"] for client, kept in states.items()}
        tested, validated = along(task, shared, own), along(task, shared, own, task.local_validations)
        clients = tested.clients.tolist()
        labels = choices(tested.accuracy, validated.accuracy)
        return {
            label: scores(
                simulation,
                {
                    client: mix(shared, own[client], LAMBDAS[place])
                    for client, place in zip(clients, places, strict=True)
                },
            )
            for label, places in labels.items()
        }
    models = {}
    for client, kept in states.items():
        own_models = algorithm.personal(server, kept)
        models[client] = next(iter(own_models.values())) if own_models else server["parameters"]
    return {"": scores(simulation, models)}


def trained(task: pf.Task, algorithm: Any, *, rounds: int, epochs: int, cohort: int, seed: int) -> dict[str, Any]:
    """``scores`` of one run after its last round, and its ``processor_seconds``.

    The run itself knows nothing of the local tests: it would evaluate every personal model on them once more.
    """
    found: dict[str, Any] = {}

    def watch(simulation: Simulation, line: dict[str, Any]) -> None:
        if line["round"] + 1 == rounds:
            found.update(judged(replace(simulation, task=task)))

    began = time.process_time()
    pf.simulate(
        replace(task, local_tests=None, local_validations=None),
        algorithm,
        rounds=rounds,
        training=pf.LocalTraining(epochs=epochs, **TRAINING),
        cohort=pf.FixedCohort(cohort),
        seed=seed,
        evaluate_every=rounds,
        execution=pf.Execution(engine="loop", workers=1),
        callbacks=[watch],
    )
    return {"scores": found, "processor_seconds": round(time.process_time() - began, 1)}


def completed(
    store: Path, settings: dict[str, Any], wanted: Iterable[dict[str, Any]], run: Callable[..., dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of ``store``, then one ``run(**which)`` for each of ``wanted`` that it lacks, each stored at once."""
    rows: list[dict[str, Any]] = json.loads(store.read_text(encoding="utf-8"))["rows"] if store.exists() else []
    for which in wanted:
        if any(which.items() <= row.items() for row in rows):
            continue
        rows.append(which | run(**which))
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        store.write_text(
            f'{{"settings": {json.dumps(settings, ensure_ascii=False)}, "rows": {text}}}\n', encoding="utf-8"
        )
        print(*which.values(), rows[-1]["scores"], f"{rows[-1]['processor_seconds']} s", flush=True)
    return rows
