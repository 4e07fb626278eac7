"""Inverting Gradients on updates of several local steps, against an untrained and a trained LeNet.

    PRIVFL_DATA=… python benchmarks/local_steps.py --out docs/results/local-steps.json

Half an hour of one core. Clients hold CIFAR-10 test images; the attack unrolls their steps, or takes them for one. What
is done is written at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from inverting_gradients import lenet

import attacks
import privfl as pf
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.metrics.measure import mean_of
from privfl.models import Network

VARIATION = {0: 0.01, 8: 0.1}
"""The weights that ``inverting_gradients.py`` found to serve best, by the epochs of the network's training."""
PUBLIC = 2000


@dataclass(frozen=True)
class Cell:
    """Clients of so many images, in batches, for epochs, at a learning rate."""

    images: int
    batch: int
    epochs: int
    rate: float

    @property
    def steps(self) -> int:
        """Local steps of a client."""
        return self.epochs * -(-self.images // self.batch)

    @property
    def name(self) -> str:
        """As the results call it."""
        return f"{self.images} images, {self.steps} steps of {self.batch}, rate {self.rate:g}"


CELLS = (Cell(1, 1, 1, 0.01), Cell(1, 1, 5, 0.01), Cell(1, 1, 5, 0.1), Cell(2, 1, 1, 0.01), Cell(2, 1, 2, 0.01))


def recorded(network: Network, data: pf.Dataset, cell: Cell, clients: int) -> pf.Transcript:
    """What the server saw of a round in which each client trains on images of its own."""
    count = clients * cell.images
    held = replace(
        data,
        inputs=data.test_inputs[:count],
        targets=data.test_targets[:count],
        test_inputs=data.test_inputs[:100],
        test_targets=data.test_targets[:100],
        clients=torch.arange(clients).repeat_interleave(cell.images),
    )
    state = network.state_dict()

    def victim() -> Network:
        made = sigmoid_lenet((3, 32, 32), 10, generator=torch.Generator().manual_seed(1), spread=0.5)
        made.load_state_dict(state)
        return made

    run = pf.simulate(
        pf.Task.from_dataset(held, partition=pf.Natural(), model=victim),
        pf.FedAvg(),
        rounds=1,
        training=pf.LocalTraining(learning_rate=cell.rate, batch_size=cell.batch, epochs=cell.epochs),
        execution=pf.Execution(engine="loop", workers=1),
        record=("server",),
    )
    assert run.transcript is not None
    return run.transcript


def attacked(options: argparse.Namespace, network: Network, data: pf.Dataset, cell: Cell, tau: float) -> Any:
    """Every client's images by the attack that knows of the steps, client by client."""
    seen, pixels, rows = recorded(network, data, cell, options.clients), Pixels.of("cifar10"), []
    first = options.clients * max(cell.images for cell in CELLS)
    public = attacks.Records(data.test_inputs[first : first + PUBLIC], data.test_targets[first : first + PUBLIC])
    for client in range(options.clients):
        own = slice(client * cell.images, (client + 1) * cell.images)
        truth = {"images": pixels.images(data.test_inputs[own])}
        attack = attacks.GradientInversion(
            client=client, batch=cell.images, iterations=options.iterations, variation=tau, seed=client
        )
        began = time.process_time()
        result = attack.run(seen, attacks.Auxiliary(public=public, truth=truth))
        labels = sorted(result.settings["labels"]) == sorted(data.test_targets[own].tolist())
        rows.append(
            {
                "psnr": result.metrics["psnr"].value,
                "nulls": {name: null["psnr"].value for name, null in result.nulls.items()},
                "labels right": labels,
                "seconds": time.process_time() - began,
            }
        )
    return {"rows": rows, "steps": cell.steps, "tau": tau}


def told(found: dict[str, Any]) -> str:
    """Mean with its interval, the best null on average, and the paired gain over it."""
    rows = found["rows"]
    own = mean_of([row["psnr"] for row in rows])
    best = max(rows[0]["nulls"], key=lambda name: statistics.mean(row["nulls"][name] for row in rows))
    gain = mean_of([row["psnr"] - row["nulls"][best] for row in rows])
    null = statistics.mean(row["nulls"][best] for row in rows)
    return (
        f"{own.value:.2f} [{own.low:.2f}, {own.high:.2f}] dB, {best} {null:.2f}, gain {gain.value:+.2f} "
        f"[{gain.low:+.2f}, {gain.high:+.2f}], labels {sum(row['labels right'] for row in rows)} of {len(rows)}, "
        f"{statistics.mean(row['seconds'] for row in rows):.1f} s"
    )


def main() -> None:
    """Attack what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    data = pf.load_dataset("cifar10", seed=0)
    for epochs, tau in sorted(VARIATION.items(), reverse=True):
        names = {f"{cell.name}, {epochs} epochs, {options.iterations} iterations": cell for cell in CELLS}
        network = lenet(epochs, data)[0] if any(name not in stored for name in names) else None
        for name, cell in names.items():
            if name not in stored:
                assert network is not None
                stored[name] = attacked(options, network, data, cell, tau)
                options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
            print(f"{name}: {told(stored[name])}", flush=True)


if __name__ == "__main__":
    main()
