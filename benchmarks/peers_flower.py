"""Flower's FedAvg with client-level Gaussian noise; started by ``peers.py`` in Flower's environment.

The shared scripts have no option for noise. Their ``common.py`` (the work, the clock, the command line) is imported
from the folder ``PRIVFL_BENCH_PEERS``, which ``peers.py`` puts on ``PYTHONPATH``, for Ray's workers as well.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

parser = common.parser(__doc__)
parser.add_argument("--actors-cpus", type=float, default=1.0)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--noise-multiplier", type=float, default=1.0)
options = parser.parse_args()
client, server = ClientApp(), ServerApp()
resident: dict[str, Any] = {}  # not functools.cache, which Ray's pickling looks up by name and cannot find


def at_hand() -> tuple[Any, Any]:
    """A worker process's own network and everybody's data, made at its first client."""
    if not resident:
        torch.set_num_threads(options.threads)
        shards, _ = common.load(options.npz, options.clients, options.seed)
        resident.update(network=common.make_model(options.model), shards=shards)
    return resident["network"], resident["shards"]


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    network, shards = at_hand()
    inputs, targets = shards[int(context.node_config["partition-id"])]
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    common.train_locally(network, inputs, targets, options.epochs, options.batch, options.lr)
    reply = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(inputs)})}
    return Message(content=RecordDict(reply), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """All rounds, then the line of ``common.py``."""
    torch.manual_seed(options.seed)
    clock = common.RoundClock()
    network = common.make_model(options.model)

    def after(number: int, arrays: ArrayRecord) -> None:
        if number > 0:
            clock.tick()

    averaging = FedAvg(
        fraction_train=options.cohort / options.clients,
        fraction_evaluate=0.0,
        min_train_nodes=options.cohort,
        min_available_nodes=options.clients,
    )
    private = DifferentialPrivacyServerSideFixedClipping(
        averaging, options.noise_multiplier, options.clip, options.cohort
    )
    start = ArrayRecord(network.state_dict())
    result = private.start(grid=grid, initial_arrays=start, num_rounds=options.rounds, evaluate_fn=after)
    network.load_state_dict(result.arrays.to_torch_state_dict())
    accuracy = common.accuracy(network, *common.load(options.npz, options.clients, options.seed)[1])
    clock.report(options, "flwr", version("flwr"), accuracy)


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=options.clients,
        backend_config={
            "client_resources": {"num_cpus": options.actors_cpus, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "log_to_driver": False, "logging_level": "error"},
        },
    )
