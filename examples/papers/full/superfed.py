"""SuPerFed (Hahn, Jeong and Lee, KDD 2022; chapter II of Hahn's thesis): Tables 2.3 to 2.7."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from landscape import LAMBDAS
from superfed import MIDDLE, STARTS, TRAINING, choices, two_nn_without_bias
from superfed_cifar10 import resized
from superfed_noise import NOISES
from torch import Tensor

import privfl as pf
from full.data import changed, divided, tensors, with_own_tests
from full.table import Column, Method, Table
from privfl.algorithms.personal.interpolation import mix
from privfl.data import info
from privfl.data.label_noise import LabelNoise
from privfl.metrics.calibration import expected_calibration_error, maximum_calibration_error
from privfl.metrics.ranking import top_k_accuracy
from privfl.models.convolutional import two_cnn
from privfl.simulation.callbacks import Simulation

WIDTH = 200
SEED = 5959
COHORT = {"cohort": pf.FixedCohort(5)}
MEASURES = {"top-1": 2, "over clients": 2, "top-1 at λ = ½": 2}
RIVALS: dict[str, Any] = {
    "FedAvg": pf.FedAvg(),
    "FedProx": pf.FedProx(),
    "SCAFFOLD": pf.Scaffold(weighting="size"),
    "LG-FedAvg": pf.LGFedAvg(),
    "FedPer": pf.FedPer(),
    "APFL": pf.APFL(alpha=0.25, adaptive=False),
    "pFedMe": pf.PFedMe(),
    "Ditto": pf.Ditto(),
    "FedRep": pf.FedRep(),
}
ASSUMED = (
    "one seed, the authors' 5959; what they print after ± is the deviation over clients",
    "SuPerFed's λ is each client's best of eleven on its own test, as in the paper; λ = ½ stands beside it",
    "settings of the rivals but APFL's α: this project's defaults",
    "learning rates fall by 1 % a round as in the text; the authors' code has 0.1 %",
)


def methods(mm: tuple[float, float], lm: tuple[float, float]) -> dict[str, Method]:
    """The rivals, and SuPerFed with (start L, ν) of its two modes."""
    ours = {
        f"SuPerFed-{mode.upper()}": pf.SuPerFed(mode=mode, start_fraction=start, nu=nu)  # type: ignore[arg-type]
        for mode, (start, nu) in (("mm", mm), ("lm", lm))
    }
    return {name: Method(algorithm) for name, algorithm in (RIVALS | ours).items()}


def of_models(simulation: Simulation, client: int, models: Iterable[Tensor]) -> list[dict[str, float]]:
    """Measures of ``models`` on the test of ``client``: calibration between 0 and 1, the others in per cent."""
    task = simulation.task
    assert task.local_tests is not None
    rows = task.local_tests[client]
    targets, found = task.targets[rows], []
    for model in models:
        logits = simulation.engine.logits(model, task.inputs[rows])
        probabilities = logits.double().softmax(1)
        found.append(
            {
                "top-1": 100 * float((logits.argmax(1) == targets).double().mean()),
                "top-5": 100 * top_k_accuracy(logits, targets, 5),
                "ECE": expected_calibration_error(probabilities, targets),
                "MCE": maximum_calibration_error(probabilities, targets),
            }
        )
    return found


def judge(simulation: Simulation) -> dict[str, float]:
    """Every client on its own test, by its own model if the method makes one: means over clients, and a deviation."""
    algorithm, server, task = simulation.algorithm, simulation.server, simulation.task
    assert task.local_tests is not None
    clients = np.flatnonzero(task.local_tests.sizes).tolist()
    best, half = [], []
    for client in clients:
        state = {**algorithm.initial_client_state(client), **simulation.client_state.get(client, {})}
        if isinstance(algorithm, pf.SuPerFed):
            ends = server["parameters"], state["personal"]
            found = of_models(simulation, client, (mix(*ends, share) for share in LAMBDAS))
            accuracy = np.array([[one["top-1"] for one in found]])
            best.append(found[choices(accuracy, accuracy)["λ best on the test"][0]])
            half.append(found[MIDDLE]["top-1"])
        else:
            own = algorithm.personal(server, state)
            best += of_models(simulation, client, [next(iter(own.values()), server["parameters"])])
            half.append(best[-1]["top-1"])
    means = {name: float(np.mean([one[name] for one in best])) for name in best[0]}
    deviations = {"over clients": "top-1", "top-5 over clients": "top-5"}
    spread = {name: float(np.std([one[of] for one in best])) for name, of in deviations.items()}
    return means | spread | {"top-1 at λ = ½": float(np.mean(half))}


def unscaled(data: pf.Dataset) -> pf.Dataset:
    """Pictures with pixels in [0, 1], as the authors have them."""
    mean, std = (
        tensors(data)[0].new_tensor(values).view(-1, 1, 1) for values in (info(data.name).mean, info(data.name).std)
    )
    return changed(data, lambda inputs: (inputs * std + mean).clamp(0, 1))


def mnist() -> pf.Dataset:
    """MNIST in [0, 1]."""
    return unscaled(pf.load_dataset("mnist"))


def cifar10() -> pf.Dataset:
    """CIFAR-10 in [0, 1], resized to 28 x 28."""
    data = unscaled(pf.load_dataset("cifar10"))
    return resized(data, len(data.test_targets))


def two_cnn_without_bias(data: pf.Dataset) -> Any:
    """The authors' bias-free "TwoCNN"."""
    shape = tuple(data.inputs.shape[1:])
    options: dict[str, Any] = {"hidden": (WIDTH, WIDTH), "bias": False, "padding": 1, "pool_padding": 1}
    return partial(two_cnn, shape, data.classes, **options)


def small(kind: str, partition: Callable[[int], Any], noise: LabelNoise | None = None) -> Any:
    """What divides MNIST or CIFAR-10 by ``partition``; a fifth of every client's rows is its test."""

    def divide(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        model = two_nn_without_bias(data, WIDTH) if kind == "MNIST" else two_cnn_without_bias(data)
        task = pf.Task.from_dataset(data, partition=partition(clients), model=model, label_noise=noise, seed=seed)
        return task.with_local_tests(pf.LocalTests(0.2), seed)

    return divide


def shards(clients: int) -> Any:
    """Two label-sorted shards each."""
    return pf.LabelSorted(clients=clients, blocks_per_client=2)


def leaf(model: str, **options: Any) -> Callable[[pf.Dataset, int, int], pf.Task]:
    """LEAF's clients with LEAF's tests."""

    def divide(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        task = divided(None, model, **options)(data, clients, seed)
        return with_own_tests(task, data)

    return divide


DATA: Mapping[str, Callable[[], pf.Dataset]] = {"MNIST": mnist, "CIFAR-10": cifar10}
COLUMN = Column(
    name="",
    data=mnist,
    divide=small("MNIST", shards),
    clients=100,
    rounds=500,
    training=pf.LocalTraining(epochs=10, **TRAINING),
    methods={},
    judge=judge,
    measures=MEASURES,
    ours="SuPerFed-MM",
    given=COHORT,
    seeds=(SEED,),
    assumed=ASSUMED,
)


def table_3(kind: str, clients: int) -> Column:
    """Two shards a client."""
    starts = {mode: {**STARTS[mode], 500: {"mm": 0.2, "lm": 0.4}[mode]}[clients] for mode in STARTS}
    return replace(
        COLUMN,
        name=f"Table 2.3, {kind}, {clients} clients",
        data=DATA[kind],
        divide=small(kind, shards),
        clients=clients,
        methods=methods((starts["mm"], 1.0), (starts["lm"], 2.0)),
    )


def table_4(kind: str, alpha: float) -> Column:
    """Dirichlet labels and top-5 accuracy."""
    name, model, clients, rate, starts = {
        "CIFAR-100": ("cifar100", "resnet9", 100, 0.01, (0.4, 0.6)),
        "TinyImageNet": (
            "tiny-imagenet",
            "mobilenet",
            200,
            0.02,
            {1: (0.35, 0.45), 10: (0.45, 0.5), 100: (0.55, 0.55)},
        ),
    }[kind]
    mm, lm = starts[int(alpha)] if isinstance(starts, dict) else starts
    more = ("no random rotation and flip",) if kind == "TinyImageNet" else ()

    def load() -> pf.Dataset:
        data = pf.load_dataset(name)
        return data if kind == "TinyImageNet" else unscaled(data)

    return replace(
        COLUMN,
        name=f"Table 2.4, {kind}, α = {alpha:g}",
        data=LOADERS.setdefault(name, load),
        divide=divided(lambda clients: pf.Dirichlet(clients, alpha), model, tests=pf.LocalTests(0.2)),
        clients=clients,
        training=replace(COLUMN.training, epochs=5, batch_size=20, learning_rate=rate),
        methods=methods((mm, 1.0), (lm, 2.0)),
        measures={"top-5": 2, "top-5 over clients": 2, "top-1": 2},
        assumed=(*ASSUMED, "GroupNorm where the authors have BatchNorm", *more),
    )


LOADERS: dict[str, Callable[[], pf.Dataset]] = {}
"""One loader for each data set, so that columns that share it load it once."""
LEAF = {"top-1": 2, "over clients": 2, "top-5": 2, "top-1 at λ = ½": 2}
FEMNIST = replace(
    COLUMN,
    name="Table 2.5, FEMNIST",
    data=partial(pf.load_dataset, "femnist"),
    divide=leaf("vgg9"),
    clients=0,
    training=replace(COLUMN.training, learning_rate_decay=0.995),
    methods=methods((0.25, 2.0), (0.45, 3.0)),
    measures=LEAF,
    assumed=(*ASSUMED[:3], "all writers of LEAF's files; the paper has 730"),
)
SHAKESPEARE = replace(
    FEMNIST,
    name="Table 2.5, Shakespeare",
    data=partial(pf.load_dataset, "shakespeare", stride=1, min_characters=924),
    divide=leaf("lstm", bias=False),
    training=replace(FEMNIST.training, epochs=5, batch_size=50, learning_rate=0.8),
    methods=methods((0.45, 1.5), (0.35, 2.0)),
    assumed=(
        *ASSUMED[:3],
        "roles with at least 924 characters, which are 660 of the roles by play; the paper has 660 of LEAF's",
        "the last fifth of a role's text is its test",
    ),
)


def table_6(kind: str, noise: str) -> Column:
    """Flipped labels: calibration."""
    spread = partial(pf.Dirichlet, alpha=100.0)
    return replace(
        COLUMN,
        name=f"Table 2.6, {kind}, {noise}",
        data=DATA[kind],
        divide=small(kind, spread, NOISES[noise]),
        methods=methods((0.4, 1.0), (0.6, 2.0)),
        measures={"ECE": 3, "MCE": 3, "top-1": 2},
        assumed=(
            *ASSUMED,
            "Dirichlet with α = 100, as in the authors' code",
            "tests keep the true labels, and calibration is over a client's whole test; the authors' code does neither",
        ),
    )


def table_7() -> Column:
    """When mixing starts."""
    modes = {"MM": ("mm", 1.0), "LM": ("lm", 2.0)}
    rows = {
        f"{name}, L = {start:g}": Method(pf.SuPerFed(mode=mode, start_fraction=start, nu=nu))  # type: ignore[arg-type]
        for name, (mode, nu) in modes.items()
        for start in (0.0, 0.2, 0.4, 0.6, 0.8)
    }
    return replace(table_3("CIFAR-10", 100), name="Table 2.7, CIFAR-10", rounds=300, methods=rows, ours="MM, L = 0.4")


TABLE = Table(
    "SuPerFed, Tables 2.3 to 2.7",
    (
        *(table_3(kind, clients) for kind in DATA for clients in (50, 100, 500)),
        *(table_4(kind, alpha) for kind in ("CIFAR-100", "TinyImageNet") for alpha in (1, 10, 100)),
        FEMNIST,
        SHAKESPEARE,
        *(table_6(kind, noise) for kind in DATA for noise in NOISES),
        table_7(),
    ),
)
