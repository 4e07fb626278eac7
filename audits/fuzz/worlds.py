"""The two worlds of an experiment: data chosen to be worst, and the run that is made of them."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from audits.fuzz import own_parts
from audits.fuzz.experiment import Experiment, Named
from audits.fuzz.instruments import watching
from audits.fuzz.tape import Tape
from privfl.algorithms import ALGORITHMS
from privfl.errors import PrivflError
from privfl.federation.availability import AVAILABILITY
from privfl.federation.client_index import ClientIndex
from privfl.federation.cohorts import COHORTS
from privfl.federation.losses import cross_entropy
from privfl.federation.task import Task
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.loss import Loss
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS
from privfl.privacy.settings import Privacy
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.randomness import process_generators, torch_stream
from privfl.references import imported
from privfl.simulation.callbacks import Simulation
from privfl.simulation.result import Run
from privfl.simulation.settings import Execution
from privfl.simulation.simulation import simulate

World = Literal["with", "without"]
"""With the example of the client (or its contribution), or without."""
LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "focal": own_parts.focal,
    "squared": own_parts.squared,
    "enlarged": own_parts.enlarged,
}
EXTRAS = ("ordinary", "huge", "enormous", "tiny", "nan", "infinite", "zeros", "opposite", "duplicate", "first of class")
COMMONS = ("ordinary", "scales", "cancelling", "equal", "large", "offset")


class Interrupted(Exception):
    """A run that is killed between two rounds."""


@dataclass(frozen=True)
class Trained:
    """How the training of one world ended; ``refusal`` is why the library did not do it, ``crash`` what went wrong."""

    tape: Tape
    run: Run | None = None
    refusal: str = ""
    crash: str = ""


def part(registry: Mapping[str, Any], named: Named) -> Any:
    """The part that ``named`` describes, registered or imported as ``module:attribute``."""
    settings = dict(named)
    name = settings.pop("name")
    kind = registry[name] if name in registry else imported(name, "a part of the experiment")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return kind(**settings) if isinstance(kind, type) or settings else kind


def model_of(experiment: Experiment) -> own_parts.Model:
    """The network, with the shape of its inputs."""
    if experiment.model in own_parts.MODELS:
        return own_parts.MODELS[experiment.model]
    found: own_parts.Model = imported(experiment.model, "the model of the experiment")
    return found


def task_of(experiment: Experiment, world: World, *, changed: bool = False) -> Task:
    """The task of one world; ``changed``: the client's last row is another one than before."""
    model, data = model_of(experiment), experiment.data
    inputs, targets = _values(experiment, model)
    if changed:
        last = sum(data.rows[: data.client + 1]) - 1
        inputs[last] = (inputs[last] + 1) % own_parts.VOCABULARY if model.tokens else -inputs[last] + 1
        targets[last] = (targets[last] + 1) % own_parts.CLASSES
    ends = np.cumsum(data.rows)
    parts = [np.arange(end - size, end) for end, size in zip(ends, data.rows, strict=True)]
    if world == "without" and experiment.unit == "sample":
        parts[data.client] = parts[data.client][:-1]
    elif world == "without":
        parts[data.client] = parts[data.client][:1]
    loss = LOSSES[experiment.loss] if experiment.loss in LOSSES else imported(experiment.loss, "the loss")

    built: dict[int, nn.Module] = {}

    def build(seed: int) -> nn.Module:
        if seed not in built:
            with process_generators(seed):
                built[seed] = model.build()
        return copy.deepcopy(built[seed])

    held_out = torch.zeros((2, *model.shape), dtype=inputs.dtype)
    return Task(
        name="fuzz",
        inputs=inputs,
        targets=targets,
        clients=ClientIndex.of(parts),
        test_inputs=held_out,
        test_targets=torch.tensor([0, 1]),
        classes=own_parts.CLASSES,
        model=build,
        model_name=experiment.model,
        loss=loss,
        vocabulary=own_parts.VOCABULARY if model.tokens else None,
    )


def _values(experiment: Experiment, model: own_parts.Model) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the world that holds more."""
    data, total = experiment.data, sum(experiment.data.rows)
    stream = torch_stream(data.seed, "fuzz")
    targets = torch.randint(own_parts.CLASSES - (data.extra == "first of class"), (total,), generator=stream)
    last = sum(data.rows[: data.client + 1]) - 1
    first = last - data.rows[data.client] + 1
    if data.extra == "first of class":
        targets[last] = own_parts.CLASSES - 1
    if model.tokens:
        tokens = torch.randint(own_parts.VOCABULARY, (total, *model.shape), generator=stream)
        if data.common == "equal":
            tokens[:] = tokens[:, :1]
        if data.extra in ("duplicate", "opposite"):
            tokens[last] = tokens[first]
        elif data.extra != "ordinary":
            tokens[last] = own_parts.VOCABULARY - 1
        return tokens, targets
    inputs = torch.randn((total, *model.shape), generator=stream)
    broad = (total, *[1] * len(model.shape))
    if data.common == "scales":
        inputs *= 10.0 ** (torch.rand(broad, generator=stream) * 40 - 20)
    elif data.common == "large":
        inputs = inputs * 1e3 + 1e6
    elif data.common == "offset":
        inputs += 1e6
    elif data.common == "cancelling":
        inputs[1::2] = -inputs[: total // 2 * 2 : 2]
    elif data.common == "equal":
        inputs[:] = inputs[0].clone()
    factors = {"huge": 1e6, "enormous": 1e20, "tiny": 1e-20, "zeros": 0.0}
    if data.extra in factors:
        inputs[last] = inputs[last] * factors[data.extra]
    elif data.extra in ("nan", "infinite"):
        inputs[last].view(-1)[0] = math.nan if data.extra == "nan" else math.inf
    elif data.extra in ("duplicate", "opposite"):
        inputs[last] = inputs[first]
        targets[last] = (targets[first] + (data.extra == "opposite")) % own_parts.CLASSES
    return inputs, targets


def privacy_of(experiment: Experiment, *, doubled: bool = False) -> Privacy:
    """The mechanisms; ``doubled``: DP-SGD with twice the noise."""
    dpsgd = None if experiment.dpsgd is None else DPSGD(**_tuples(experiment.dpsgd))
    if doubled and dpsgd is not None and isinstance(dpsgd.noise_multiplier, float):
        dpsgd = replace(dpsgd, noise_multiplier=2 * dpsgd.noise_multiplier)
    return Privacy(
        training=dpsgd,
        update=tuple(part(UPDATE_MECHANISMS, one) for one in experiment.update),
        statistics=tuple(NoisyTotal(**one) for one in experiment.statistics),
        size=None if experiment.size is None else part(SIZE_MECHANISMS, experiment.size),
        max_size_error=1e9,
        noise_key=experiment.noise_key,
    )


def _tuples(values: Named) -> Named:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def train(experiment: Experiment, world: World, tape: Tape, *, price: bool = False) -> Trained:
    """Train one world under the eyes of ``tape``; what the library refuses is told, not raised.

    With ``price`` the statement holds the true ε, else 1 for whatever is finite.
    """
    if world == "without" and experiment.unit == "client":
        tape.left_out = experiment.data.client
    fixed = experiment.noise_key.to_bytes(32, "big")
    try:
        with watching(tape, fixed, price=price, combination=_combination(experiment)):
            return Trained(tape, _runs(experiment, world, tape))
    except PrivflError as refusal:
        return Trained(tape, refusal=f"{type(refusal).__name__}: {refusal}")
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError, AttributeError) as error:
        return Trained(tape, crash=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def _combination(experiment: Experiment) -> object:
    """What decides whether clients can be stacked."""
    parts = experiment.model, experiment.loss, experiment.algorithm, experiment.training, experiment.dpsgd is None
    return repr((*parts, experiment.statistics, experiment.update))


def _runs(experiment: Experiment, world: World, tape: Tape) -> Run:
    """All sessions of the run: one, or two with an interruption between."""
    resume = experiment.resume
    if resume is None or resume.after >= experiment.rounds:
        return _simulate(experiment, task_of(experiment, world), privacy_of(experiment))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        often = 0.0 if resume.checkpoint else 1e9

        def interrupt(state: Simulation, line: Any) -> None:
            if state.round == resume.after:
                raise Interrupted

        task, privacy = task_of(experiment, world), privacy_of(experiment)
        if resume.changed == "lost key":  # the run's own key, which nobody chose
            privacy = replace(privacy, noise_key=None)
        try:
            _simulate(experiment, task, privacy, out=path, checkpoint_seconds=often, callbacks=[interrupt])
        except Interrupted:
            tape.session += 1
        task = task_of(experiment, world, changed=resume.changed == "row" and world == "with")
        privacy = privacy_of(experiment, doubled=resume.changed == "noise")
        if resume.changed == "lost key":
            (path / "noise.key").unlink()
        if resume.changed in ("lost key", "forgotten key"):
            privacy = replace(privacy, noise_key=None)
        return _simulate(experiment, task, privacy, out=path, checkpoint_seconds=often, resume=True)


def _simulate(
    experiment: Experiment, task: Task, privacy: Privacy, *, checkpoint_seconds: float = 1e9, **more: Any
) -> Run:
    engine: Any = experiment.engine
    execution = Execution(device="cpu", engine=engine, workers=1, checkpoint_seconds=checkpoint_seconds)
    known = {one.name for one in fields(LocalTraining)}
    assert set(experiment.training) <= known
    return simulate(
        task,
        part(ALGORITHMS, experiment.algorithm),
        rounds=experiment.rounds,
        seed=experiment.seed,
        evaluate_every=10**6,
        training=LocalTraining(**experiment.training),
        privacy=privacy,
        cohort=part(COHORTS, experiment.cohort),
        availability=part(AVAILABILITY, experiment.availability),
        execution=execution,
        **more,
    )
