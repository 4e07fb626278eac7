"""``make_private`` with the arguments of Opacus' ``PrivacyEngine``, for a federation instead of one data set.

.. code-block:: python

    federation = pf.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0,
        partition=pf.IID(clients=10),
    )
    run = federation.simulate(rounds=5)
    print(run.statement)

Every client does on its own rows what Opacus did on all of them: Poisson batches at the same public rate, clipping, and
noise of its own, as many steps in a round as Opacus takes in an epoch. So one example costs what it cost before, step
by step, and now before the server as well; ``federation`` holds the task, the training and the privacy to go on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from privfl.algorithms.base import Algorithm
from privfl.algorithms.fedavg import FedAvg
from privfl.data.partitions import Partition
from privfl.data.targets import TaskKind
from privfl.errors import ConfigError
from privfl.federation.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from privfl.federation.task import Task
from privfl.models.flat_network import frozen_parameters
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.loss import Loss
from privfl.privacy.settings import Privacy
from privfl.simulation.result import Run
from privfl.simulation.simulation import simulate
from privfl.validation import check_count, said

_CRITERIA: dict[type[nn.Module], tuple[TaskKind, Loss]] = {
    nn.CrossEntropyLoss: ("classification", cross_entropy),
    nn.MSELoss: ("regression", mean_squared_error),
    nn.BCEWithLogitsLoss: ("multi-label", binary_cross_entropy),
}
_MODES = ("hooks", "functorch", "ew", "ghost", "no_op", "ghost_fsdp", "hooks_fsdp")


@dataclass(frozen=True)
class PrivateFederation:
    """What ``make_private`` makes of a training: the parts of a federated run.

    Args:
        task: the rows, dealt to clients, with the model at the weights that it was handed over with.
        training: of one client in a round.
        privacy: DP-SGD at every client.
        rounds: how many are planned; ``None`` leaves it to :meth:`simulate`.
    """

    task: Task
    training: LocalTraining
    privacy: Privacy
    rounds: int | None = None

    def simulate(self, algorithm: Algorithm | None = None, *, rounds: int | None = None, **settings: Any) -> Run:
        """Train ``algorithm``, FedAvg with equal weights by default; ``settings`` go to ``pf.simulate`` as they are.

        Raises:
            ConfigError: nobody said how many rounds, or a setting is impossible.
        """
        rounds = self.rounds if rounds is None else rounds
        if rounds is None:
            raise ConfigError("rounds is missing; give federation.simulate(rounds=…), one round for an epoch of Opacus")
        given = {"training": self.training, "privacy": self.privacy, **settings}
        return simulate(self.task, algorithm or FedAvg(weighting="uniform"), rounds=rounds, **given)


def make_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader[Any],
    noise_multiplier: float,
    max_grad_norm: float,
    criterion: nn.Module | None = None,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    poisson_sampling: bool = True,
    clipping: str = "flat",
    noise_generator: torch.Generator | None = None,
    grad_sample_mode: str = "hooks",
    wrap_model: bool = True,
    partition: Partition | None = None,
    clients: Any = None,
    test: tuple[Any, Any] | None = None,
) -> PrivateFederation:
    """A federation whose clients train as ``PrivacyEngine().make_private`` with the same arguments would.

    Args:
        module: the model; the federation starts from its weights, and it is left as it is.
        optimizer: ``torch.optim.SGD`` over all parameters of the model, with or without those that are frozen.
        data_loader: its data set is dealt to the clients. The sample rate is 1/len(data_loader), as with Opacus, and
            its batch size, divided by the number of clients, the public divisor of each client's gradients.
        noise_multiplier, max_grad_norm: of DP-SGD at every client.
        criterion: ``CrossEntropyLoss`` (default), ``MSELoss`` or ``BCEWithLogitsLoss`` with their own defaults.
        batch_first, loss_reduction, poisson_sampling, clipping, noise_generator: must have Opacus' defaults.
        grad_sample_mode, wrap_model: change nothing here: privfl forms gradients its own way.
        partition: deals the rows out; or ``clients``, who owns which row [N].
        test: inputs and targets to test on; without them a fifth of the rows is held out.

    Raises:
        ConfigError: an argument has no meaning in a federation; the sentence names it, and the mend.
    """
    dpsgd = DPSGD(noise_multiplier, None, _norm(max_grad_norm), _rate(data_loader))
    _refuse(batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, grad_sample_mode)
    return _federation(module, optimizer, data_loader, criterion, Privacy(training=dpsgd), partition, clients, test)


def make_private_with_epsilon(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader[Any],
    target_epsilon: float,
    target_delta: float,
    epochs: int,
    max_grad_norm: float,
    criterion: nn.Module | None = None,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    poisson_sampling: bool = True,
    clipping: str = "flat",
    noise_generator: torch.Generator | None = None,
    grad_sample_mode: str = "hooks",
    wrap_model: bool = True,
    partition: Partition | None = None,
    clients: Any = None,
    test: tuple[Any, Any] | None = None,
) -> PrivateFederation:
    """The same with the noise that ``epochs`` rounds need to stay within ``target_epsilon`` at ``target_delta``.

    The noise is solved for by privfl's own accountant when the run begins; Opacus' finds nearly the same. The other
    arguments are those of :func:`make_private`.

    Raises:
        ConfigError: an argument has no meaning in a federation; the sentence names it, and the mend.
    """
    check_count("epochs", epochs)
    dpsgd = DPSGD(None, target_epsilon, _norm(max_grad_norm), _rate(data_loader))
    _refuse(batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, grad_sample_mode)
    privacy = Privacy(training=dpsgd, target_delta=target_delta)
    planned = _federation(module, optimizer, data_loader, criterion, privacy, partition, clients, test)
    return replace(planned, rounds=epochs)


def _rate(loader: DataLoader[Any]) -> float:
    """The sample rate that Opacus takes."""
    if not isinstance(loader, DataLoader) or not isinstance(loader.batch_size, int):
        raise ConfigError(f"data_loader is {said(loader)}; give a torch DataLoader with a batch_size")
    try:
        batches = len(loader)
    except TypeError:
        raise ConfigError("data_loader has no length; give one over a data set with len() and [row]") from None
    if batches < 1:
        raise ConfigError("data_loader has no batch; give a data set with rows")
    return 1 / batches


def _norm(max_grad_norm: Any) -> float:
    if isinstance(max_grad_norm, list | tuple):
        raise ConfigError(
            f"max_grad_norm is {said(max_grad_norm)}, a norm for each layer; give one number for the whole gradient"
        )
    norm: float = max_grad_norm  # DPSGD says what is wrong with anything else
    return norm


def _refuse(
    batch_first: bool, reduction: str, poisson: bool, clipping: str, generator: torch.Generator | None, mode: str
) -> None:
    if not poisson:
        raise ConfigError(
            "poisson_sampling is False: shuffled batches are no Poisson samples, and an ε for a sample rate would not "
            "be earned; leave it at True"
        )
    if clipping != "flat":
        raise ConfigError(f"clipping is '{clipping}'; privfl clips the whole gradient of an example, clipping='flat'")
    if reduction != "mean":
        raise ConfigError(f"loss_reduction is '{reduction}'; give 'mean' and scale the learning rate instead")
    if not batch_first:
        raise ConfigError("batch_first is False; transpose the data set so that its first dimension counts rows")
    if generator is not None:
        raise ConfigError(
            "noise_generator is given, and noise from a known seed protects nobody; leave it out, or reproduce an "
            "experiment by privacy=pf.Privacy(…, noise_key=…)"
        )
    if mode not in _MODES:
        raise ConfigError(f"grad_sample_mode is '{mode}'; leave it out, privfl chooses how gradients are formed")


def _federation(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    criterion: nn.Module | None,
    privacy: Privacy,
    partition: Partition | None,
    clients: Any,
    test: tuple[Any, Any] | None,
) -> PrivateFederation:
    if partition is None and clients is None:
        raise ConfigError(
            "nobody says who holds which row; give partition=pf.IID(clients=10), or clients=, an owner a row"
        )
    learning_rate, momentum, weight_decay = _sgd(module, optimizer)
    kind, loss = _loss(criterion)
    inputs, targets = _rows(loader)
    start = deepcopy(module)
    task = Task.from_arrays(
        inputs,
        targets,
        clients=clients,
        test=test,
        kind=kind,
        partition=partition,
        model=lambda: deepcopy(start),
        loss=loss,
    )
    assert loader.batch_size is not None  # _rate has seen to that
    training = LocalTraining(
        learning_rate=learning_rate,
        batch_size=max(1, round(loader.batch_size / len(task.clients))),
        momentum=momentum,
        weight_decay=weight_decay,
    )
    return PrivateFederation(task, training, privacy)


def _sgd(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float, float]:
    """Learning rate, momentum and weight decay."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"module is {said(module)}; give a torch.nn.Module")
    if hasattr(module, "_module"):
        raise ConfigError(f"module is a {type(module).__name__}, wrapped by Opacus already; give the model inside it")
    if type(optimizer) is not torch.optim.SGD:
        raise ConfigError(
            f"optimizer is {type(optimizer).__name__}; clients take plain steps, so give torch.optim.SGD, and an "
            "adaptive server by simulate(pf.FedAdam())"
        )
    if len(optimizer.param_groups) != 1:
        raise ConfigError(f"optimizer has {len(optimizer.param_groups)} groups of parameters; give one for all")
    group = optimizer.param_groups[0]
    frozen = {id(one) for one in frozen_parameters(module).values()}  # which SGD leaves alone, and so do clients
    if {id(one) for one in group["params"]} - frozen != {id(one) for one in module.parameters()} - frozen:
        raise ConfigError("optimizer has other parameters than module; make it of module.parameters()")
    for name in ("dampening", "nesterov", "maximize"):
        if group[name]:
            raise ConfigError(f"optimizer has {name} = {group[name]!r}, which clients do not have; leave it out")
    return float(group["lr"]), float(group["momentum"]), float(group["weight_decay"])


def _loss(criterion: nn.Module | None) -> tuple[TaskKind, Loss]:
    criterion = nn.CrossEntropyLoss() if criterion is None else criterion
    kind = type(criterion)
    if kind not in _CRITERIA:
        known = ", ".join(one.__name__ for one in _CRITERIA)
        raise ConfigError(f"criterion is {said(criterion)}; give {known}, or a loss of your own by pf.Task.from_arrays")
    plain = kind()
    for name, value in vars(plain).items():
        if not name.startswith("_") and name != "training" and getattr(criterion, name, None) != value:
            raise ConfigError(
                f"criterion has {name} = {getattr(criterion, name, None)!r}; leave it at {value!r}, or give a loss of "
                "your own by pf.Task.from_arrays"
            )
    for name in ("weight", "pos_weight"):
        if getattr(criterion, name, None) is not None:
            raise ConfigError(
                f"criterion has a {name}; leave it out, or give a loss of your own by pf.Task.from_arrays"
            )
    return _CRITERIA[kind]


def _rows(loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    """Inputs [N, ...] and targets [N, ...] of the loader's data set, in its order."""
    if loader.collate_fn is not default_collate:
        raise ConfigError("data_loader has a collate_fn of its own; give a data set of pairs (input, target)")
    rows: Any = loader.dataset
    if type(rows) is TensorDataset:
        columns: Sequence[Any] = rows.tensors
    else:
        columns = default_collate([rows[row] for row in range(len(rows))])
    if (
        not isinstance(columns, list | tuple)
        or len(columns) != 2
        or not all(isinstance(one, Tensor) for one in columns)
    ):
        raise ConfigError(
            "data_loader's data set has other rows than pairs (input, target) of numbers; give such pairs"
        )
    return columns[0], columns[1]
