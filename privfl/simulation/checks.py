"""Whether a task, an algorithm and its mechanisms fit together: what can be refused is refused before any work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privfl.algorithms.base import Algorithm, check_contract, overrides
from privfl.engine.client_randomness import ClientRandomness
from privfl.errors import ConfigError, brief
from privfl.federation.cohorts import Cohort, earned_rate
from privfl.federation.fit import check_trains
from privfl.federation.shapes import input_warnings
from privfl.federation.task import Task
from privfl.models.flat_network import FlatNetwork
from privfl.plain_tensors import check_untouched
from privfl.privacy.accounting.stated import check_exact, stating_class
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.clipping.opacus_hooks import check_opacus
from privfl.privacy.clipping.per_sample import GradSampleMode, PerSampleGradients, hooks_refusal, unknown_layers
from privfl.privacy.clipping.probe import check_per_sample
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import PerSample
from privfl.privacy.door.precision import Precision
from privfl.privacy.loss import refuse_coupled
from privfl.privacy.noise.source import NoiseStream
from privfl.privacy.settings import Privacy
from privfl.references import shipped


@dataclass(frozen=True)
class Checked:
    """What the checks found out.

    ``way`` is how per-sample gradients are formed, ``None`` without DP-SGD. ``needs_sizes``: clients tell the server
    their sizes; ``hides_weights``: they weigh their uploads themselves, and only the sum of the weights is opened.
    """

    channel: ChannelSpec
    way: GradSampleMode | None
    needs_sizes: bool
    warnings: list[str]
    hides_weights: bool


_SENDS = (
    *("fields", "plan", "begin", "prepare", "step", "add_data_independent_gradient", "conclude", "finish"),
    *("initial_client_state", "survey", "bind"),
)
"""What decides about an upload at the client."""


def check_settings(
    task: Task,
    algorithm: Algorithm,
    privacy: Privacy,
    cohort: Cohort,
    device: torch.device,
    precision: Precision = "float32",
) -> Checked:
    """Refuse settings that contradict each other; ``precision`` is that of gradients.

    Raises:
        ConfigError: a combination is impossible, or would make a claim that it cannot earn.
    """
    dpsgd, clients = privacy.training, len(task.clients)
    for part, what in ((task, "task"), (task.clients, "Task.clients")):
        if not shipped(type(part)):  # it could say something else each time that it is asked
            raise ConfigError(f"{what} is a {type(part).__name__}, which is not privfl's own; give what privfl makes")
    for name, values in (("inputs", task.inputs), ("targets", task.targets), ("clients.rows", task.clients.rows)):
        check_untouched(values, f"Task.{name}")
    network = FlatNetwork(task.model(0), device)
    task.check_model(network.module)
    check_exact("privacy", privacy, Privacy)
    privacy.check_parts()
    cohort.check_clients(clients)
    check_contract(algorithm)
    if algorithm.needs_classes and task.kind != "classification":
        raise ConfigError(
            f"{algorithm.name} works with the class of each example, and examples of a task of the kind {task.kind} "
            "have none; take an algorithm that needs none, such as fedavg, fedprox, scaffold or ditto"
        )
    _check_kept(algorithm, network.flat)
    warnings = input_warnings(task.inputs.shape[1:], task.model, unscaled=task.unscaled)
    if dpsgd is not None or shipped(stating_class(algorithm, "step")):  # one from outside may not use the task's loss
        warnings += check_trains(network.module, task.loss, *task.probe(3), precision)
    way: GradSampleMode | None = None
    if dpsgd is not None:
        if algorithm.dpsgd_refusal():
            raise ConfigError(f"DP-SGD cannot protect this run: {algorithm.dpsgd_refusal()}")
        dpsgd.check_clients(clients)
        way = _way(dpsgd.per_sample, network, task)
    channel = ChannelSpec.of(privacy.update, algorithm.fields(), dpsgd, earned_rate(cohort), privacy.statistics)
    channel = replace(channel, pooled=algorithm.pools_data)
    _check_statistics(algorithm, privacy)
    if channel.has_client_level_noise and algorithm.survey() is not None:
        raise ConfigError(
            f"{algorithm.name} asks its cohort before it trains, and noise on updates does not cover the answers; "
            "leave privacy.update out"
        )
    weighted = algorithm.weights() == "size" or cohort.needs_sizes
    asked = algorithm.asks_sizes() or cohort.needs_sizes
    hides_weights = channel.secure is not None and privacy.size is None and weighted and not asked
    needs_sizes = (asked or weighted) and not hides_weights
    if channel.secure is not None:
        _check_secure_sum(algorithm)
        if asked and privacy.size is None:
            raise ConfigError(
                f"{algorithm.name if algorithm.asks_sizes() else 'the cohort'} needs to know sizes, which would be "
                "sent in the clear, outside SecureSum; set privacy.size, or choose weights and a cohort that do not "
                "need them"
            )
    if channel.has_client_level_noise and (weighted or algorithm.weights() == "server"):
        raise ConfigError(
            "client-level noise requires uniform weights; set weighting = 'uniform' and a cohort that does not "
            "depend on sizes"
        )
    if dpsgd is not None and dpsgd.noise_at == "server" and (weighted or algorithm.weights() == "server"):
        raise ConfigError(
            "noise_at = 'server' requires uniform weights, because a client with a larger weight would exceed the "
            "sensitivity that the noise covers; set weighting = 'uniform' and draw a cohort that does not depend on "
            "sizes"
        )
    if channel.noise_at_server:
        _check_sum_of_gradients(algorithm)
    if channel.amplified:
        _keep_draw_secret(privacy)
    if cohort.rate < earned_rate(cohort):
        warnings.append(
            f"{type(cohort).__name__} says that it draws at the rate {cohort.rate:g}, which nobody can check; no claim "
            "is amplified by it, as it would be by privfl's own PoissonCohort"
        )
    if needs_sizes and privacy.size is not None:
        privacy.size.require_precision(clients, privacy.max_size_error)
        warnings += privacy.size.check_sizes(task.clients.sizes)
    if privacy.size is not None and not needs_sizes:
        warnings.append(f"privacy.size is set, but {algorithm.name} never asks for sizes; nothing is sent")
    return Checked(channel, way, needs_sizes, warnings, hides_weights)


def _check_secure_sum(algorithm: Algorithm) -> None:
    """Refuse algorithms that have no sums to hide clients in."""
    if algorithm.pools_data:
        raise ConfigError(f"{algorithm.name} has no clients whose sum could hide them; leave SecureSum out")
    if algorithm.weights() == "server":
        raise ConfigError(
            f"{algorithm.name}'s server weighs single clients, which SecureSum hides from it; use an algorithm that "
            "needs sums only (`privfl list algorithms`)"
        )


def _check_sum_of_gradients(algorithm: Algorithm) -> None:
    """Refuse a client's half of an algorithm of which only its author knows that it sends one sum of gradients.

    Noise on the sum is sized for what the class says that one example moves; nothing at the server can check that.
    """
    stating = stating_class(algorithm, "fields")
    for method in _SENDS if shipped(stating) else _SENDS[:1]:
        changing = stating_class(algorithm, method)
        if not shipped(stating) or changing not in stating.__mro__:
            raise ConfigError(
                f"noise at the server is sized for a sum of clipped gradients, and nobody can check that {method} of "
                f"{changing.__name__} keeps to one; take FedSampling as it is, or DPSGD(noise_at='client')"
            )


def _check_statistics(algorithm: Algorithm, privacy: Privacy) -> None:
    """Refuse noise for totals that nobody takes."""
    valid, phase = list(algorithm.statistics), algorithm.survey()
    while phase is not None:
        valid += phase.statistics
        phase = phase.bind(algorithm.context).survey()
    for one in privacy.statistics:
        if one.statistic not in valid:
            known = f"it takes {', '.join(valid)}" if valid else "it takes none"
            raise ConfigError(f"{algorithm.name} takes no total named '{one.statistic}' ({known}); leave it out")
        if one.statistic in algorithm.totals_of_batches:
            raise ConfigError(
                f"{algorithm.name} takes the total '{one.statistic}' of every batch, and noise is accounted for one "
                "total a round; leave it out, or have the report taken of all data"
            )


def _way(wanted: PerSample, network: FlatNetwork, task: Task) -> GradSampleMode:
    """How per-sample gradients of ``network`` are formed if ``wanted`` is asked for; refused if that cannot be."""
    refuse_coupled(task.loss)
    probe = task.probe(4)
    with ClientRandomness(network.module) as randomness:  # drop-out that is no layer is as engines have it
        randomness.layer.generator = NoiseStream(bytes(32))
        fastest = check_per_sample(network, task.loss, *probe)
    if wanted == "auto":
        return fastest
    if wanted == "layers" and fastest == "vmap":
        unknown = unknown_layers(network.module)
        because = f"there is no rule for {unknown[0]}" if unknown else "a parameter is used outside of its own layer"
        raise ConfigError(f"DPSGD's per_sample is 'layers', but {because}; use 'auto', 'vmap' or 'opacus'")
    if wanted == "layers":
        return fastest
    if wanted == "opacus":
        if not PerSampleGradients(network, "vmap").serves_batches(task.loss, probe[0]):
            raise ConfigError(hooks_refusal("this model or its loss"))
        check_opacus(network, task.loss, *probe)
    return wanted


def _keep_draw_secret(privacy: Privacy) -> None:
    """Refuse what would publish who was drawn, because the claim is amplified by a secret draw of the cohort."""
    if privacy.training is not None and privacy.training.target_epsilon is not None:
        raise ConfigError(
            "target_epsilon cannot be combined with a Poisson cohort, because the calibrated noise would reveal which "
            "clients were sampled; give DPSGD a noise_multiplier, or draw another cohort than poisson"
        )
    if privacy.budget is not None and privacy.budget.unit == "sample":
        raise ConfigError(
            "a budget for samples cannot be combined with a Poisson cohort, because the round in which the run stops "
            "would reveal which clients were sampled; set the budget for client/public, or draw another cohort than "
            "poisson"
        )


def _check_kept(algorithm: Algorithm, parameters: Tensor) -> None:
    """Refuse an algorithm whose clients begin with something that nobody has kept yet."""
    if not algorithm.keeps or overrides(algorithm, "initial_client_state"):
        return
    received = algorithm.broadcast(algorithm.begin_round(algorithm.start(parameters.clone()), 0))
    try:
        with torch.no_grad():
            algorithm.begin(received, {}, LocalTraining())
    except KeyError as error:
        if error.args[0] in algorithm.keeps:
            raise ConfigError(
                f"{algorithm.name}'s clients keep {error.args[0]!r} and begin with it, but before the first round "
                "there is none; define initial_client_state(client), or begin with client_state.get(…)"
            ) from error
        raise


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU.

    Raises:
        ConfigError: torch does not know the device, or there is none of that kind.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{brief(name)}'; use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is '{name}', on which privfl does not compute; use auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"has {torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "has no CUDA device"
        raise ConfigError(f"device is '{name}', but this machine {found}; use auto or cpu")
    return device
