"""FedEvg (chapter IV of Hahn's thesis): Tables 4.2 to 4.5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from fedevg import THESIS
from synthetic import trained_features
from torch import Tensor

import privfl as pf
from full.data import changed, divided, tensors
from full.superfed import unscaled
from full.table import Column, Method, Table
from privfl.algorithms.generative.server_training import train_classifier
from privfl.metrics.generative import frechet_distance
from privfl.models import build
from privfl.models.flat_network import flatten
from privfl.simulation.callbacks import Simulation

ROUNDS = 500
CLASSIFIER, ENERGY = "fedevg-resnet10", "resnet10-energy"
EPOCHS = 150
"""Of the classifier that the server trains on its hundred images."""
DATA = {
    "MNIST": ("mnist", 32),
    "CIFAR-10": ("cifar10", 32),
    "DermaMNIST": ("derma-mnist", 64),
    "OrganCMNIST": ("organc-mnist", 64),
}
"""The thesis's four data sets, as the catalog calls them, and pixels of each side."""
PLAIN = {"weight_decay": 0.0, "decay_every": 25}
METHODS = {
    "FedCGAN": Method(pf.FedCGAN(classifier_epochs=1, **THESIS), training=PLAIN),
    "FedCVAE": Method(pf.FedCVAE(classifier_epochs=1, **THESIS), training=PLAIN),
    "FedEvg": Method(pf.FedEvg(classifier_epochs=1)),
}
ASSUMED = (
    "500 rounds for all, as the authors' latest scripts have for FedEvg",
    "FID in features of a small network that half of the test images train, against the other half; Inception-v3's "
    "weights are not here, so its level is another",
    f"the server's classifier trains for {EPOCHS} epochs, in the authors' code for one",
    "the baselines' rates fall by a tenth every 25 rounds: in the authors' scripts every 5 of 100, or 50 of 1,000",
    "GroupNorm in the generators where the authors have BatchNorm, their losses mended (see docs/baselines.md)",
)


def pictures(name: str, side: int) -> pf.Dataset:
    """Pictures in [0, 1] of ``side`` pixels each way."""
    data = unscaled(pf.load_dataset(name))
    if tensors(data)[0].shape[-1] == side:
        return data
    return changed(data, partial(F.interpolate, size=(side, side), mode="bilinear", antialias=True))


def judge(simulation: Simulation) -> dict[str, float]:
    """Accuracy of a fresh ResNet-10, trained on the server's images, on the clients' tests; FID of these images."""
    task, server = simulation.task, simulation.server
    assert task.local_tests is not None
    images, labels = server["images"].clamp(0, 1), server["labels"]
    network = build(CLASSIFIER, tuple(images.shape[1:]), task.classes, seed=simulation.schedule.seed).to(images.device)
    train_classifier(network, flatten(network), images, labels, epochs=EPOCHS, seed=simulation.schedule.seed)
    network.eval()
    rows = task.local_tests.rows
    with torch.no_grad():
        found = torch.cat([network(task.inputs[part]).argmax(1) for part in torch.split(rows, 500)])
    accuracy = 100 * float((found == task.targets[rows]).double().mean())
    return {"accuracy": accuracy, "FID": fid(task, images.cpu())}


def fid(task: pf.Task, images: Tensor) -> float:
    """Of ``images`` to half of the test images, in features that the other half has trained."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(task.test_targets)))
    seen, real = order[: len(order) // 2], order[len(order) // 2 :]
    inputs, targets = task.test_inputs.cpu(), task.test_targets.cpu()
    features = trained_features(inputs[seen], targets[seen], task.classes, source="half of the test images")
    return frechet_distance(features(inputs[real]), features(images))


def column(name: str, clients: int, alpha: float, data: Callable[[], pf.Dataset]) -> Column:
    """One data set, number of clients and skew."""
    more = ("28 pixels, enlarged; the thesis has files of 64",) if DATA[name][1] == 64 else ()
    return Column(
        name=f"{name}, {clients} clients, α = {alpha:g}",
        data=data,
        divide=lambda data, count, seed: divided(partial(pf.Dirichlet, alpha=alpha), ENERGY, tests=pf.LocalTests(0.2))(
            data, count, seed
        ),
        clients=clients,
        rounds=ROUNDS,
        training=pf.LocalTraining(
            learning_rate=1e-3, batch_size=64, weight_decay=1e-4, learning_rate_decay=0.9, decay_every=50
        ),
        methods=METHODS,
        judge=judge,
        measures={"accuracy": 2, "FID": 1},
        ours="FedEvg",
        given={"cohort": pf.FixedCohort(10)},
        seeds=(1, 2, 3),
        assumed=(*ASSUMED, *more),
    )


TABLE = Table(
    "FedEvg, Tables 4.2 to 4.5",
    tuple(
        column(name, clients, alpha, data)
        for name, given in DATA.items()
        for data in [partial(pictures, *given)]
        for clients in (10, 100)
        for alpha in (0.01, 1.0)
    ),
)
"""Tables 4.2 and 4.3 have the accuracies, 4.4 and 4.5 the FIDs of these runs."""
