"""Draws experiments: every choice from one stream, so that a seed and a number say which experiment it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from audits.fuzz.experiment import Data, Experiment, Named, Resume
from audits.fuzz.own_parts import MODELS
from audits.fuzz.worlds import COMMONS, EXTRAS, LOSSES
from privfl.randomness import numpy_stream

Item = TypeVar("Item")
OWN = "audits.fuzz.own_parts:"
SINGLE: tuple[Named, ...] = (
    {"name": "fedavg", "weighting": "uniform"},
    {"name": "fedprox", "weighting": "uniform"},
    {"name": "feddyn"},
    {"name": "fedadam", "weighting": "uniform"},
    {"name": "fedyogi", "weighting": "uniform"},
    {"name": "fedadagrad", "weighting": "uniform"},
    {"name": "fedavg-ft", "weighting": "uniform"},
    {"name": "apfl", "weighting": "uniform"},
    {"name": "ditto", "weighting": "uniform"},
    {"name": "per-fedavg", "weighting": "uniform"},
    {"name": "pfedme", "weighting": "uniform", "personal_steps": 1},
    {"name": OWN + "Regularised", "weighting": "uniform"},
)
"""Algorithms that upload one field with uniform weights, so that all mechanisms may go with them."""
SPLIT: tuple[Named, ...] = (
    {"name": "moon", "weighting": "uniform"},
    {"name": "fedper", "weighting": "uniform"},
    {"name": "fedrep", "weighting": "uniform", "head_epochs": 1},
    {"name": "fedbabu", "weighting": "uniform"},
    {"name": "lg-fedavg", "weighting": "uniform"},
    {"name": "superfed", "weighting": "uniform"},
)
"""Algorithms whose networks have features and a head."""
SEVERAL: tuple[Named, ...] = (
    {"name": "scaffold"},
    {"name": "fedmgda"},
    {"name": "local"},
    {"name": "propfair", "weighting": "uniform", "per_sample": True},
    {"name": "aaggff-d", "response_epsilon": 1.0, "loss_bound": 5.0, "lower": 0.0, "upper": 1.0},
    {"name": "aaggff-s", "response_epsilon": 1.0, "loss_bound": 5.0, "lower": 0.0, "upper": 1.0},
)
"""Algorithms that send more than one field, none, or randomised reports, or whose server weighs."""
COUNTED: tuple[tuple[Named, tuple[str, ...], str], ...] = (
    ({"name": "fedlc", "weighting": "uniform", "least_count": 0.5}, ("label_prior",), "any"),
    ({"name": "fedrs", "weighting": "uniform"}, ("label_prior",), "split"),
    (
        {
            "name": "rebafl",
            "weighting": "uniform",
            "per_sample": True,
            "proto_source": "global_only",
            "feature_norm": 1.0,
        },
        ("label_prior", "prototypes"),
        "split",
    ),
    ({"name": "q-fedavg", "loss_bound": 5.0}, ("loss",), "any"),
    ({"name": "term", "weighting": "uniform", "loss_bound": 5.0}, ("loss",), "any"),
    ({"name": OWN + "Counting"}, ("classes",), "any"),
)
"""Algorithms that take totals over samples, with the names of these and the networks that they go with."""
SIZED: tuple[Named, ...] = (
    {"name": "fedavg", "weighting": "size"},
    {"name": "fedavg", "weighting": "scheme-2"},
    {"name": "fedprox", "weighting": "size"},
    {"name": "ditto", "weighting": "size"},
)
LONGER = 0.08
"""Share of the experiments in which a client has tens of rows, or more than a hundred."""
SIZES = ("grr", "laplace", "duchi", "piecewise", "hybrid")
TRANSFORMS: tuple[Named, ...] = (
    {"name": OWN + "TopK", "k": 2},
    {"name": OWN + "Quantised", "step": 0.01},
)


class Draw:
    """Choices out of one stream."""

    def __init__(self, seed: int, number: int, stream: str = "fuzz") -> None:
        self.rng: np.random.Generator = numpy_stream(seed, stream, number)

    def one(self, items: Sequence[Item]) -> Item:
        """One of ``items``, each as likely."""
        return items[int(self.rng.integers(len(items)))]

    def maybe(self, probability: float) -> bool:
        """A coin."""
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def power(self, low: float, high: float) -> float:
        """A number whose logarithm is uniform."""
        return float(f"{10.0 ** self.rng.uniform(np.log10(low), np.log10(high)):.4g}")


def draw(seed: int, number: int) -> Experiment:
    """Experiment ``number`` of the campaign ``seed``."""
    die = Draw(seed, number)
    kind = die.one((_door, _door, _door, _server, _counted, _sized, _chain, _chain, _chain, _both, _secure, _secure))
    experiment = kind(die)
    experiment = _about(die, experiment)
    if experiment.dpsgd is not None and die.maybe(0.04):
        experiment = replace(
            experiment,
            rounds=max(2, experiment.rounds),
            resume=Resume(1, die.maybe(0.5), die.one(("", "", "lost key"))),
        )
    return _longer(Draw(seed, number, "fuzz: longer"), experiment)


def _longer(die: Draw, experiment: Experiment) -> Experiment:
    """In a few the client in which the worlds differ has many rows: its passes are longer, or several."""
    data = experiment.data
    if not die.maybe(LONGER):
        return experiment
    rows = list(data.rows)
    rows[data.client] = die.whole(20, 150)
    training = {**experiment.training, "batch_size": die.one((4, 16, 128))}
    return replace(experiment, data=replace(data, rows=tuple(rows)), training=training)


def _about(die: Draw, experiment: Experiment) -> Experiment:
    """What every experiment has: data, schedule, engine, who takes part."""
    clients = die.whole(3, 5) if _sums_securely(experiment) else die.whole(2, 5)
    data = Data(
        rows=tuple(die.whole(2, 5) for _ in range(clients)),
        client=die.whole(0, clients - 1),
        common=die.one(COMMONS),
        extra=die.one(EXTRAS),
        seed=die.whole(0, 10**6),
    )
    training: Named = {"learning_rate": die.power(1e-2, 1e2), "batch_size": die.whole(1, 4)}
    if die.maybe(0.3):
        training |= {"momentum": 0.9}
    if die.maybe(0.2):
        training |= {"weight_decay": 0.1}
    if die.maybe(0.3):
        training |= {"steps": die.whole(1, 3)}
    elif die.maybe(0.2):
        training |= {"epochs": 2}
    if experiment.training:
        training |= experiment.training
    cohort = experiment.cohort
    if cohort["name"] == "everyone" and not _sums_securely(experiment):
        cohort = die.one(
            (
                {"name": "everyone"},
                {"name": "everyone"},
                {"name": "fixed", "size": max(1, clients - 1)},
                {"name": "poisson", "probability": 0.6},
                {"name": "rotation", "period": 2},
            )
        )
    available: Named = {"name": "always"}
    if die.maybe(0.15):
        available = die.one(({"name": "bernoulli", "probability": 0.7}, {"name": "fixed-fraction", "fraction": 0.7}))
    return replace(
        experiment,
        unit=die.one(("sample", "client")) if experiment.update else "sample",
        loss=die.one((*["cross-entropy"] * 4, *[name for name in LOSSES if name != "cross-entropy"])),
        data=data,
        training=training,
        cohort=cohort,
        availability=available,
        engine=die.one(("loop", "vectorised")),
        rounds=experiment.rounds if experiment.rounds > 1 else die.whole(1, 3),
        seed=die.whole(0, 10**6),
        noise_key=die.whole(1, 10**9),
    )


def _sums_securely(experiment: Experiment) -> bool:
    return any(link["name"] == "secure-sum" for link in experiment.update)


def _dpsgd(die: Draw) -> Named:
    rate: Any = die.one((1.0, 0.9, 0.5, 0.5, 0.2))
    return {
        "noise_multiplier": die.power(0.3, 10),
        "max_grad_norm": die.power(1e-3, 1e3),
        "sample_rate": rate,
        "per_sample": die.one(("auto", "auto", "auto", "vmap")),
    }


def _any_model(die: Draw) -> str:
    return die.one(tuple(MODELS))


def _door(die: Draw) -> Experiment:
    """DP-SGD at the clients."""
    if die.maybe(0.3):
        return Experiment(model="split", algorithm=die.one(SPLIT), dpsgd=_dpsgd(die))
    return Experiment(model=_any_model(die), algorithm=die.one((*SINGLE, *SEVERAL)), dpsgd=_dpsgd(die))


def _server(die: Draw) -> Experiment:
    """DP-SGD whose noise is added at the server, with sizes that are reported privately."""
    dpsgd = _dpsgd(die)
    dpsgd["noise_at"] = die.one(("server", "server", "client"))
    return Experiment(
        model=_any_model(die),
        algorithm={"name": "fedsampling", "samples_per_round": die.whole(1, 8)},
        dpsgd=dpsgd,
        size=_size(die),
        update=({"name": "clip", "max_norm": die.power(1e-2, 1e2)},) if die.maybe(0.3) else (),
    )


def _size(die: Draw) -> Named:
    return {"name": die.one(SIZES), "epsilon": die.power(0.5, 5), "bound": die.whole(5, 10)} | (
        {"refresh": "every_round"} if die.maybe(0.3) else {}
    )


def _counted(die: Draw) -> Experiment:
    """Algorithms that take totals, each under a noisy total."""
    algorithm, names, model = die.one(COUNTED)
    statistics = tuple(
        {"statistic": name, "max_norm": die.power(1e-2, 1e2), "noise_multiplier": die.power(0.3, 10)} for name in names
    )
    return Experiment(
        model="split" if model == "split" else _any_model(die),
        algorithm=algorithm,
        dpsgd=_dpsgd(die),
        statistics=statistics,
    )


def _sized(die: Draw) -> Experiment:
    """Weights by size, which are reported privately."""
    return Experiment(model=_any_model(die), algorithm=die.one(SIZED), dpsgd=_dpsgd(die), size=_size(die))


def _bound(die: Draw) -> Named:
    return {"name": die.one(("clip", "clip", "clip", OWN + "BoxClip")), "max_norm": die.power(1e-3, 1e2)}


def _chain(die: Draw) -> Experiment:
    """Noise on updates, by clients or the server."""
    links: list[Named] = [_bound(die)]
    if die.maybe(0.3):
        links.insert(die.whole(0, 1), die.one(TRANSFORMS))
    noise: Named = {"name": "gaussian-noise", "noise_multiplier": die.power(0.3, 10)}
    cohort: Named = {"name": "everyone"}
    rounds = 1
    which = die.one(("client", "server", "server", "adaptive", "tree", "banded"))
    if which in ("client", "server"):
        noise["at"] = which
    elif which == "adaptive":
        links = [link for link in links if "TopK" in link["name"]]
        links.insert(0, _adaptive(die, noise["noise_multiplier"]))
        rounds = die.whole(2, 3)
    else:
        noise = {"name": f"{which}-noise", "noise_multiplier": die.power(0.3, 10)}
        cohort, rounds = {"name": "rotation", "period": 2}, die.whole(2, 4)
    return Experiment(
        model=_any_model(die), algorithm=die.one(SINGLE), update=(*links, noise), cohort=cohort, rounds=rounds
    )


def _adaptive(die: Draw, noise: float) -> Named:
    return {
        "name": "adaptive-clip",
        "initial_norm": die.power(1e-3, 1e2),
        "count_noise": float(f"{noise * die.power(0.6, 5):.4g}"),
    }


def _both(die: Draw) -> Experiment:
    """DP-SGD at the door and noise on updates."""
    return replace(_chain(die), dpsgd=_dpsgd(die))


def _secure(die: Draw) -> Experiment:
    """Sums that nobody sees the terms of, with noise in shares, at the server, or at the clients."""
    secure: Named = {"name": "secure-sum", "mode": "ideal"}
    which = die.one(("skellam", "discrete-gaussian", "server", "adaptive", "client", "dp-sgd"))
    links: list[Named] = [_bound(die)]
    z = die.power(0.3, 10)
    if which in ("skellam", "discrete-gaussian"):
        links += [{"name": f"{which}-noise", "noise_multiplier": z}, secure]
    elif which == "server":
        links += [secure, {"name": "gaussian-noise", "noise_multiplier": z}]
    elif which == "adaptive":
        links = [_adaptive(die, z), secure, {"name": "gaussian-noise", "noise_multiplier": z}]
    elif which == "client":
        links += [{"name": "gaussian-noise", "noise_multiplier": z, "at": "client"}, secure]
    else:
        links = [secure]
    dpsgd = _dpsgd(die) if which == "dp-sgd" else None
    return Experiment(model=_any_model(die), algorithm=die.one(SINGLE), dpsgd=dpsgd, update=tuple(links))


KINDS: tuple[Callable[[Draw], Experiment], ...] = (_door, _server, _counted, _sized, _chain, _both, _secure)
