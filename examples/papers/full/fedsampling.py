"""FedSampling (Qi et al., IJCAI 2023): Table 1."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import privfl as pf
from full.data import divided
from full.table import Column, Method, Table, Tuned, last_line
from privfl.data.files import data_folder
from privfl.data.questions import hashed
from privfl.errors import DataError

SAMPLES, BOUND, EPSILON = 2048, 100, 3.0
LENGTH, VOCABULARY = 30, 50_000
SIZES: dict[str, Any] = {}
"""Of the networks, if they are not the authors'."""
EPOCHS = 20
"""Rounds are so many times N // K, as in the authors' notebook for MIND."""
RATINGS = 5
SERVER_RATES = Tuned("server_learning_rate", (0.001, 0.003, 0.01))
MODELS = {"Text-CNN": "text-cnn", "Transformer": "transformer"}


def cohort(task: pf.Task) -> pf.FixedCohort:
    """As many clients as hold ``SAMPLES`` examples on average."""
    return pf.FixedCohort(max(1, round(SAMPLES * len(task.clients) / len(task.clients.rows))))


def rounds(task: pf.Task) -> int:
    """So many that ``EPOCHS`` times all examples are drawn."""
    return EPOCHS * max(1, len(task.clients.rows) // SAMPLES)


def private_sizes(task: pf.Task) -> pf.Privacy:
    """Every client answers once with its size, at random with the paper's mechanism."""
    return pf.Privacy(size=pf.RandomizedResponse(EPSILON, BOUND), max_size_error=math.inf)


DRAWN = {"cohort": cohort}
METHODS = {
    "Centralization": Method(pf.Centralized()),
    "FedAvg": Method(pf.FedAvg(weighting="uniform"), given=DRAWN),
    "FedYogi": Method(pf.FedYogi(weighting="uniform"), given=DRAWN, tuned=SERVER_RATES),
    "FedAdagrad": Method(pf.FedAdagrad(weighting="uniform"), given=DRAWN, tuned=SERVER_RATES),
    "FedAdam": Method(pf.FedAdam(weighting="uniform"), given=DRAWN, tuned=SERVER_RATES),
    "FedSampling": Method(pf.FedSampling(SAMPLES), given={"privacy": private_sizes}),
}
ASSUMED = (
    "ε = 3 of a size's answer: the value is lost, and the authors' next paper has 3",
    "rate 0.05 and 20 times N // K rounds of one step: of the authors' notebook for MIND",
    "server rates of FedYogi, FedAdagrad and FedAdam: the best of three or four on a fifth of the training rows",
    "words are hashed to 50,000 and their embeddings learnt; the authors have GloVe's, frozen",
    "scores are those after the last round",
)


def reviews(name: str) -> pf.Dataset:
    """Amazon's 5-core reviews of 2014: the words of a text, its stars as class, its author as client.

    Raises:
        DataError: the official file is not in the folder that PRIVFL_DATA names, or is damaged.
    """
    folder, file = data_folder(), f"amazon2014/reviews_{name}_5.json.gz"
    if folder is None or not (folder / file).exists():
        raise DataError(f"Amazon's reviews of {name} have no download; set PRIVFL_DATA to a folder that holds {file}")
    tokens, stars, authors = [], [], []
    try:
        with gzip.open(folder / file, "rt", encoding="utf-8") as lines:
            for line in lines:
                review = json.loads(line)
                ids = hashed(review["reviewText"], VOCABULARY)[:LENGTH]
                tokens.append(ids + [0] * (LENGTH - len(ids)))
                stars.append(int(review["overall"]) - 1)
                authors.append(review["reviewerID"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / file} is no file of reviews ({error!r}); fetch it again") from error
    names, owners = np.unique(authors, return_inverse=True)
    held = np.random.default_rng(0).random(len(stars)) < 0.2
    held[np.unique(owners, return_index=True)[1]] = False  # everybody keeps a review to train on
    if not held.any():
        held[-1] = True
    inputs, targets, clients = torch.tensor(tokens), torch.tensor(stars), torch.from_numpy(owners)
    return pf.Dataset(
        f"amazon-reviews-{name}",
        inputs[~held],
        targets[~held],
        inputs[held],
        targets[held],
        RATINGS,
        clients[~held],
        clients[held],
        client_names=tuple(names.tolist()),
        vocabulary=VOCABULARY,
    )


def news() -> pf.Dataset:
    """MIND's titles and their topics."""
    return pf.load_dataset("mind", length=LENGTH, vocabulary=VOCABULARY)


def federation(natural: bool, model: str) -> Callable[[pf.Dataset, int, int], pf.Task]:
    """What divides a data set among its own clients, or among ones of log-normal sizes."""
    partition = None if natural else lambda _: pf.LogNormal(sigma=2.5, mean_size=2.0)

    def divide(data: pf.Dataset, clients: int, seed: int) -> pf.Task:
        return divided(partition, model, **SIZES)(data, clients, seed)

    return divide


SETS: dict[str, tuple[Callable[[], pf.Dataset], bool]] = {
    "MIND": (news, False),
    "Toys": (partial(reviews, "Toys_and_Games"), True),
    "Beauty": (partial(reviews, "Beauty"), True),
}
"""What loads each data set, and whether it has clients of its own."""


def column(name: str, model: str) -> Column:
    """One data set and network."""
    data, natural = SETS[name]
    more = (
        "a random fifth of the reviews is the test"
        if natural
        else "sizes are log-normal, mean 2, σ = 2.5: of the notebook"
    )
    return Column(
        name=f"Table 1, {name}, {model}",
        data=data,
        divide=federation(natural, MODELS[model]),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.05, batch_size=SAMPLES, steps=1),
        methods=METHODS,
        judge=last_line("macro_f1", "accuracy"),
        measures={"accuracy": 2, "macro_f1": 2},
        ours="FedSampling",
        seeds=(0, 1, 2, 3, 4),
        assumed=(*ASSUMED, more),
    )


TABLE = Table("FedSampling, Table 1", tuple(column(name, model) for name in SETS for model in MODELS))
