"""The door of one client: what the loop engine's algorithms see."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from privfl.data.mapped import Rows
from privfl.parameters import FlatNetwork
from privfl.privacy.door import (
    BARE_GRADIENT,
    BARE_SIZE,
    BARE_TOTAL,
    ROWS_AT_ONCE,
    Batch,
    DoorLog,
    DrawnBatch,
    Loss,
    public_plan,
)
from privfl.privacy.dpsgd import DPSGD
from privfl.privacy.noise import NoiseStream
from privfl.privacy.per_sample import PerSampleGradients
from privfl.privacy.plans import Plan
from privfl.privacy.precision import Precision, in_precision


class ClientDoor:
    """One client's data during one round; see :class:`privfl.privacy.door.Door` for what it promises."""

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
    ) -> None:
        self.client, self.loss = client, loss
        self.log = DoorLog()
        self._rows, self._inputs, self._targets = rows, inputs, targets
        self._network, self._clipper, self._dpsgd = network, clipper, dpsgd
        self._shuffle, self._noise, self._precision = shuffle, noise, precision

    def batches(self, plan: Plan) -> Iterator[DrawnBatch]:
        """The batches of one round, drawn as ``plan`` says."""
        for rows in plan.rows(self._rows, self._shuffle, self._noise):
            count = torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
            yield DrawnBatch(plan, count, rows, self._inputs[rows], self._targets[rows])

    def gradient(self, loss: Loss, parameters: Tensor, batch: Batch, given: dict[str, Tensor] | None = None) -> Tensor:
        """See :meth:`privfl.privacy.door.Door.gradient`. The result is the workspace's own buffer."""
        assert isinstance(batch, DrawnBatch)
        self._load(parameters)
        loss = in_precision(partial(loss, **given) if given else loss, self._precision, parameters.device)
        if self._dpsgd is None:
            return self._bare_gradient(loss, batch)
        return self._private_gradient(loss, batch, self._dpsgd)

    def total(
        self, statistic: Loss, parameters: Tensor, batch: Batch, given: dict[str, Tensor] | None = None
    ) -> Tensor:
        """See :meth:`privfl.privacy.door.Door.total`."""
        assert isinstance(batch, DrawnBatch)
        self.log.bare[BARE_TOTAL] = None
        self._load(parameters)
        module = self._network.module
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                sums = [statistic(module, *piece, **(given or {})).sum(0) for piece in _pieces(batch)]
        finally:
            module.train(training)
        return torch.stack(sums).sum(0)

    def size(self) -> Tensor:
        """See :meth:`privfl.privacy.door.Door.size`."""
        self.log.bare[BARE_SIZE] = None
        return torch.tensor(float(len(self._rows)), dtype=torch.float64, device=self._rows.device)

    def _load(self, parameters: Tensor) -> None:
        if parameters is not self._network.flat:
            self._network.load(parameters)

    def _bare_gradient(self, loss: Loss, batch: DrawnBatch) -> Tensor:
        self.log.bare[BARE_GRADIENT] = None
        network, rows = self._network, len(batch.rows)
        divisor = batch.plan.divide_by(rows)
        if rows <= ROWS_AT_ONCE and rows > 0:
            self._sum_into_gradient(loss, batch.inputs, batch.targets, divisor)
            return network.gradient
        total = torch.zeros_like(network.gradient)
        for inputs, targets in _pieces(batch):
            if len(inputs):
                self._sum_into_gradient(loss, inputs, targets, divisor)
                total += network.gradient
        return network.gradient.copy_(total)

    def _sum_into_gradient(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float) -> None:
        if self._clipper is not None:
            self._clipper.plain_sum(loss, inputs, targets, divisor)
            return
        network = self._network
        with torch.enable_grad():
            total = loss(network.module, inputs, targets).sum() / divisor
        torch.cat([gradient.reshape(-1) for gradient in network.gradient_of(total)], out=network.gradient)

    def _private_gradient(self, loss: Loss, batch: DrawnBatch, dpsgd: DPSGD) -> Tensor:
        rate, divisor = public_plan(batch.plan)
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
