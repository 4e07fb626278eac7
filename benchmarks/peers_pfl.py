"""pfl's FedAvg with client-level Gaussian noise on the sum; started by ``peers.py`` in pfl's environment.

The shared scripts have no option for noise. Their ``common.py`` (the work, the clock, the command line) is imported
from the folder ``PRIVFL_BENCH_PEERS``, which ``peers.py`` puts on ``PYTHONPATH``.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


class Network(nn.Module):
    """The shared network with the two methods that pfl calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = common.make_model(name)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, in training mode."""
        self.train()
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Nothing: evaluation is no part of the timing."""
        return {}


class Ticks(TrainingProcessCallback):
    """Notes the end of every round."""

    def __init__(self) -> None:
        self.clock = common.RoundClock()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time and go on."""
        self.clock.tick()
        return False, Metrics()


def cohorts(clients: int, cohort: int, seed: int) -> Any:
    """Client after client, every ``cohort`` of them without repetition (pfl's own sampler repeats)."""
    draws = np.random.default_rng(seed)
    while True:
        yield from draws.choice(clients, cohort, replace=False).tolist()


def main() -> None:
    """Train and print the line of ``common.py``."""
    parser = common.parser(__doc__)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    shards, test = common.load(options.npz, options.clients, options.seed)
    users = [Dataset(list(shard), user_id=str(number)) for number, shard in enumerate(shards)]
    drawn = cohorts(options.clients, options.cohort, options.seed)
    data = FederatedDataset(users.__getitem__, lambda: next(drawn))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(options.clip, options.noise_multiplier))
    network, ticks = Network(options.model), Ticks()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(options.rounds, 10**9, options.cohort, None),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser(), noise]),
        model=PyTorchModel(
            model=network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=options.epochs, local_learning_rate=options.lr, local_batch_size=options.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[ticks],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        accuracy = common.accuracy(network.layers, *test)
        ticks.clock.report(options, "pfl", version("pfl"), accuracy, processes=processes)


if __name__ == "__main__":
    main()
