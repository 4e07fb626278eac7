"""Inverting Gradients on the first 50 CIFAR-10 test images, against an untrained and a trained LeNet.

    PRIVFL_DATA=… python benchmarks/inverting_gradients.py --out docs/results/inverting-gradients.json

A quarter of an hour of one core. Client i of a recorded round holds image i and takes one step. The weight τ of total
variation is the one that serves best on other images, which the attacker owns. What is done is written at once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import privfl as pf
from attacks.gradient_inversion.dlg import revealed_label
from attacks.gradient_inversion.inversion import OTHERS
from attacks.gradient_inversion.side_by_side import inverting_each, single_gradients
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.nulls import image_nulls
from attacks.images.pixels import Pixels
from attacks.metrics.measure import mean_of
from attacks.observations.gradients import as_gradient
from privfl.models import Network

VARIATIONS = (1e-3, 1e-2, 1e-1)
REHEARSED = 12
PUBLIC = 2000


def lenet(epochs: int, data: pf.Dataset) -> tuple[Network, float | None]:
    """The LeNet with weights in ±0.5, trained for so many epochs by Adam, and its test accuracy if it was trained."""
    network = sigmoid_lenet((3, 32, 32), 10, generator=torch.Generator().manual_seed(1), spread=0.5)
    if not epochs:
        return network, None
    generator = torch.Generator().manual_seed(2)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=epochs * -(-len(data.targets) // 128))
    for _ in range(epochs):
        for rows in torch.randperm(len(data.targets), generator=generator).split(128):
            loss = F.cross_entropy(network(data.inputs[rows]), data.targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        right = (network(data.test_inputs).argmax(1) == data.test_targets).double().mean()
    return network, float(right)


def recorded(network: Network, data: pf.Dataset, images: int) -> pf.Transcript:
    """What the server saw of a round in which client i holds test image i and takes one step."""
    held = pf.Dataset(
        data.name,
        data.test_inputs[:images],
        data.test_targets[:images],
        data.test_inputs[:100],
        data.test_targets[:100],
        data.classes,
        torch.arange(images),
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
        training=pf.LocalTraining(learning_rate=1.0, batch_size=1),
        execution=pf.Execution(engine="loop", workers=1),
        record=("server",),
    )
    assert run.transcript is not None
    return run.transcript


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """In dB, image by image, [n]."""
    return -10 * (found - truth).double().square().mean((1, 2, 3)).clamp_min(1e-10).log10()


def inverted(options: argparse.Namespace, network: Network, observed: list[Tensor], labels: Tensor, tau: float) -> Any:
    """Images and objectives of a search from the same starts whatever is observed."""
    start = torch.randn(len(labels), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pixels = Pixels.of("cifar10")
    return inverting_each(network, observed, labels, start, pixels, iterations=options.iterations, variation=tau)


def attacked(options: argparse.Namespace, data: pf.Dataset, epochs: int) -> dict[str, Any]:
    """One network: the rehearsal, the attack, its nulls."""
    pixels, count = Pixels.of("cifar10"), options.images
    network, accuracy = lenet(epochs, data)
    public = slice(count, count + PUBLIC)
    known, classes = data.test_inputs[public], data.test_targets[public]
    shown = pixels.images(known)
    rehearsal = {}
    for tau in VARIATIONS:
        seen = single_gradients(network, known[:REHEARSED], classes[:REHEARSED])
        short = argparse.Namespace(iterations=options.iterations // 2)
        found, _ = inverted(short, network, seen, classes[:REHEARSED], tau)
        rehearsal[tau] = float(psnr(found, shown[:REHEARSED]).mean())
        print(f"rehearsal at {tau:g}: {rehearsal[tau]:.2f} dB", flush=True)
    best = max(rehearsal, key=lambda tau: rehearsal[tau])
    long = {}
    for factor in (1, 2):  # whether twice the iterations would find more
        seen = single_gradients(network, known[:REHEARSED], classes[:REHEARSED])
        more = argparse.Namespace(iterations=factor * options.iterations)
        found, _ = inverted(more, network, seen, classes[:REHEARSED], best)
        long[factor * options.iterations] = float(psnr(found, shown[:REHEARSED]).mean())
        print(f"{factor * options.iterations} iterations: {long[factor * options.iterations]:.2f} dB", flush=True)
    moment = recorded(network, data, count)[0]
    parts = [as_gradient(network, moment.uploads[client]["update"], learning_rate=1.0) for client in range(count)]
    observed = [torch.stack(layer) for layer in zip(*parts, strict=True)]
    labels = torch.tensor([revealed_label(head) for head in observed[-2]])
    began = time.process_time()
    images, objectives = inverted(options, network, observed, labels, best)
    seconds = (time.process_time() - began) / count
    truth = pixels.images(data.test_inputs[:count])
    generator = torch.Generator().manual_seed(3)
    nulls = image_nulls(shown, classes, labels, generator)
    few = min(REHEARSED, count)  # this null costs as much as the attack
    twins = [int((classes == label).nonzero()[place]) for place, label in enumerate(labels[:few])]
    theirs = single_gradients(network, known[twins], classes[twins])
    nulls[OTHERS], _ = inverted(short, network, theirs, labels[:few], best)
    values = psnr(images, truth)
    return {
        "accuracy": accuracy,
        "tau": best,
        "iterations": {str(many): value for many, value in long.items()},
        "rehearsal": {f"{tau:g}": value for tau, value in rehearsal.items()},
        "labels right": int((labels == data.test_targets[:count]).sum()),
        "psnr": mean_of(values.tolist()).to_json(),
        "deviation": float(values.std()),
        "images": [round(value, 3) for value in values.tolist()],
        "objective": float(objectives.mean()),
        "nulls": {name: mean_of(psnr(null, truth[: len(null)]).tolist()).to_json() for name, null in nulls.items()},
        "seconds per image": seconds,
    }


def main() -> None:
    """Attack the networks that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=2400)
    parser.add_argument("--epochs", type=int, nargs="*", default=[0, 8], help="of the networks' training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    data = pf.load_dataset("cifar10", seed=0)
    for epochs in options.epochs:
        name = f"{options.images} images, {options.iterations} iterations, {epochs} epochs"
        if name not in stored:
            stored[name] = attacked(options, data, epochs)
            options.out.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        row = stored[name]
        print(f"{name}: {row['psnr']['value']:.2f} ± {row['deviation']:.2f} dB, nulls {row['nulls']}", flush=True)


if __name__ == "__main__":
    main()
