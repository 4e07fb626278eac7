"""The door of one client: what the loop engine's algorithms see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from privfl.data.mapped import Rows
from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.door.batch_plans import Epochs, Plan
from privfl.privacy.door.contract import (
    BARE_GRADIENT,
    BARE_SIZE,
    ROWS_AT_ONCE,
    SECOND_GRADIENT,
    Batch,
    DoorLog,
    DrawnBatch,
    public_plan,
)
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.noisy_total import Totals
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import Loss, coupled, is_coupled, refuse_coupled
from privfl.privacy.noise.source import NoiseStream


class ClientDoor:
    """One client's data during one round; see :class:`privfl.privacy.door.contract.Door` for what it promises."""

    def __init__(
        self,
        client: int,
        rows: Tensor,
        inputs: Rows,
        targets: Tensor,
        network: FlatNetwork,
        clipper: PerSampleGradients | None,
        loss: Loss,
        dpsgd: DPSGD | None,
        shuffle: torch.Generator,
        noise: NoiseStream | None,
        precision: Precision = "float32",
        *,
        draws: Draws | None = None,
        totals: Totals | None = None,
    ) -> None:
        self.client, self.loss = client, loss
        self.log = DoorLog()
        self._rows, self._inputs, self._targets = rows, inputs, targets
        self._network, self._clipper, self._dpsgd = network, clipper, dpsgd
        self._shuffle, self._noise, self._precision = shuffle, noise, precision
        self._draws, self._totals = draws or Draws(), totals or Totals()
        self._spent: DrawnBatch | None = None

    def batches(self, plan: Plan) -> Iterator[DrawnBatch]:
        """The batches of one round, drawn as ``plan`` says."""
        for step, rows in enumerate(plan.rows(self._rows, self._shuffle, self._noise)):
            yield self._batch(plan, rows, plan.is_last(step, len(self._rows)), self._draws)

    def everything(self) -> DrawnBatch:
        """All rows of the client as one batch."""
        return self._batch(Epochs(len(self._rows), 1), self._rows, True, Draws())

    def _batch(self, plan: Plan, rows: Tensor, last: bool, draws: Draws) -> DrawnBatch:
        count, flag = torch.tensor([len(rows), last], dtype=torch.float64, device=rows.device)
        numbers = draws.next(self._network.flat)
        inputs, targets = self._inputs[rows], self._targets[rows]
        return DrawnBatch(plan, count, flag, *numbers, self._note_size, rows, inputs, targets)

    def _note_size(self) -> None:
        self.log.bare[BARE_SIZE] = None

    def gradient(self, loss: Loss, parameters: Tensor, batch: Batch, given: dict[str, Tensor] | None = None) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.gradient`. The result is the workspace's own buffer."""
        assert isinstance(batch, DrawnBatch)
        if self._dpsgd is not None:
            refuse_coupled(loss)
        loss = self._prepared(loss, batch, given)
        with self._network.at(parameters):
            if self._dpsgd is None:
                self.log.bare[BARE_GRADIENT] = None
                return self._bare_gradient(loss, batch)
            return self._private_gradient(loss, batch, self._dpsgd)

    def total(
        self,
        statistic: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.total`."""
        assert isinstance(batch, DrawnBatch)
        noisy = self._totals.mechanism(name)
        if noisy is not None:
            refuse_coupled(statistic)
        sums = []
        with self._evaluating(parameters), torch.no_grad():
            for piece in _pieces(batch):
                values = statistic(self._network.module, *piece, **(given or {}))
                sums.append((values if noisy is None else noisy.clip(values)).sum(0))
        total = torch.stack(sums).sum(0)
        return self._totals.release(total, noisy, self.log, values.dtype)

    def kept_gradient(
        self,
        loss: Loss,
        parameters: Tensor,
        batch: Batch,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.kept_gradient`."""
        assert isinstance(batch, DrawnBatch)
        if wrt == "parameters":
            with self._network.at(parameters):
                return self._bare_gradient(self._prepared(loss, batch, given), batch, by_layers=False).clone()
        values = dict(given or {})
        leaf = values[wrt] = values[wrt].detach().requires_grad_()
        loss = self._prepared(loss, batch, values)
        if len(batch.rows) == 0:
            return torch.zeros_like(leaf)
        with self._network.at(parameters), torch.enable_grad():
            mean = loss(self._network.module, batch.inputs, batch.targets).sum() / batch.plan.divide_by(len(batch.rows))
        return torch.autograd.grad(mean, leaf)[0]

    def free_gradient(
        self,
        function: Callable[..., Tensor],
        parameters: Tensor,
        given: dict[str, Tensor] | None = None,
        wrt: str = "parameters",
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.free_gradient`."""
        values = dict(given or {})
        with self._evaluating(parameters):
            if wrt != "parameters":
                leaf = values[wrt] = values[wrt].detach().requires_grad_()
                with torch.enable_grad():
                    return torch.autograd.grad(function(self._network.module, **values).sum(), leaf)[0]
            with torch.enable_grad():
                total = function(self._network.module, **values).sum()
            return torch.cat([gradient.reshape(-1) for gradient in self._network.gradient_of(total)])

    def free_value(
        self, function: Callable[..., Tensor], parameters: Tensor, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.free_value`."""
        with self._evaluating(parameters), torch.no_grad():
            return function(self._network.module, **(given or {})).clone()

    def size(self) -> Tensor:
        """See :meth:`privfl.privacy.door.contract.Door.size`."""
        self._note_size()
        return torch.tensor(float(len(self._rows)), dtype=torch.float64, device=self._rows.device)

    def _prepared(self, loss: Loss, batch: DrawnBatch, given: dict[str, Tensor] | None) -> Loss:
        """``loss`` with what it takes by name, in the run's precision."""
        values = dict(given or {})
        if is_coupled(loss):
            values["present"] = torch.ones(len(batch.rows), dtype=torch.bool, device=batch.rows.device)
        whole = is_coupled(loss)
        loss = in_precision(partial(loss, **values) if values else loss, self._precision, self._network.flat.device)
        return coupled(partial(loss)) if whole else loss

    @contextmanager
    def _evaluating(self, parameters: Tensor) -> Iterator[None]:
        """The network at ``parameters`` in evaluation mode, for a while."""
        module = self._network.module
        training = module.training
        module.eval()
        try:
            with self._network.at(parameters):
                yield
        finally:
            module.train(training)

    def _bare_gradient(self, loss: Loss, batch: DrawnBatch, *, by_layers: bool = True) -> Tensor:
        network, rows = self._network, len(batch.rows)
        divisor = batch.plan.divide_by(rows)
        if rows > 0 and (rows <= ROWS_AT_ONCE or is_coupled(loss)):
            self._sum_into_gradient(loss, batch.inputs, batch.targets, divisor, by_layers)
            return network.gradient
        total = torch.zeros_like(network.gradient)
        for inputs, targets in _pieces(batch):
            if len(inputs):
                self._sum_into_gradient(loss, inputs, targets, divisor, by_layers)
                total += network.gradient
        return network.gradient.copy_(total)

    def _sum_into_gradient(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float, by_layers: bool) -> None:
        if self._clipper is not None and by_layers:
            self._clipper.plain_sum(loss, inputs, targets, divisor)
            return
        network = self._network
        with torch.enable_grad():
            total = loss(network.module, inputs, targets).sum() / divisor
        torch.cat([gradient.reshape(-1) for gradient in network.gradient_of(total)], out=network.gradient)

    def _private_gradient(self, loss: Loss, batch: DrawnBatch, dpsgd: DPSGD) -> Tensor:
        rate, divisor = public_plan(batch.plan)
        if batch is self._spent:
            raise ConfigError(SECOND_GRADIENT)
        self._spent = batch
        clipper, gradient = self._clipper, self._network.gradient
        assert clipper is not None
        if len(batch.rows) <= ROWS_AT_ONCE:
            clipper.clipped_sum(loss, batch.inputs, batch.targets, dpsgd.max_grad_norm)
        else:
            total = torch.zeros_like(gradient)
            for inputs, targets in _pieces(batch):
                clipper.clipped_sum(loss, inputs, targets, dpsgd.max_grad_norm)
                total += gradient
            gradient.copy_(total)
        if dpsgd.noise_at == "client":
            assert self._noise is not None
            self._noise.add_gaussian_(gradient, dpsgd.noise(self.client) * dpsgd.max_grad_norm)
        self.log.note_private(dpsgd, self.client, rate)
        return gradient.div_(divisor)


def _pieces(batch: DrawnBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets in pieces of at most ``ROWS_AT_ONCE`` rows; one empty piece of an empty batch."""
    return zip(torch.split(batch.inputs, ROWS_AT_ONCE), torch.split(batch.targets, ROWS_AT_ONCE), strict=True)
