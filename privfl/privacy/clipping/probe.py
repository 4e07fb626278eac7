"""Which way of forming per-sample gradients serves a network, found out on public values before a run."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import shrunk
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.per_sample import GradSampleMode, PerSampleGradients, evaluating, unknown_layers
from privfl.privacy.clipping.row_wise import FAILURES, failure
from privfl.privacy.loss import Loss

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""What the engines replace by drop-out with coins of its own."""
DIFFERENT = "they come out different from those of single samples"


def check_per_sample(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor) -> GradSampleMode:
    """Find out which way serves ``network``, and refuse what no way serves.

    Runs on a small probe batch of *public* values ([3..8, ...]), in evaluation mode so that drop-out does not matter.
    A way serves if it clips every sample as a loop over single samples does, for batches of two sizes. Whether rows may
    be seen together is no matter of trying: what is not known to work row by row never sees two.

    Raises:
        ConfigError: the loss of one sample changes with the other samples, so clipping per sample means nothing; a
            layer's per-sample gradients cannot be formed; parameters are coarser than float32; or the model or the loss
            cannot run one row at a time.
    """
    module = network.module
    _refuse_coarse(network)
    known = inputs.dim() in known_ranks(module) and known_function(loss)
    with evaluating(module):
        with torch.no_grad():
            together, again = (loss(module, inputs, targets) for _ in range(2))
            if not torch.allclose(together, again, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise ConfigError(
                    "in evaluation mode the model or its loss gives other numbers each time it sees the same rows, so "
                    "nobody can tell whether each sample stays alone; draw in training mode only (if "
                    "network.training, F.dropout(x, training=self.training)), or train without DP-SGD"
                )
            apart = torch.stack([loss(module, inputs[i : i + 1], targets[i : i + 1]).sum() for i in range(len(inputs))])
        if together.shape != (len(inputs),) or not torch.allclose(together, apart, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                "what the model and its loss give is not one term per sample that depends on that sample alone, so "
                "clipping per sample would protect nothing; let the model treat every sample alone (no .item() or "
                "branch on values of a whole batch, no statistics over it), write the loss as one term per sample, or "
                "train without DP-SGD"
            )
        unknown, problem = unknown_layers(module), ""
        by_rules: tuple[GradSampleMode, ...] = ("layers",) if known else ("rows",)
        for way in (*(() if unknown else by_rules), "vmap"):
            problem = _wrong(network, loss, inputs, targets, way)
            if not problem:
                break
        else:
            if unknown:
                raise ConfigError(
                    f"per-sample gradients of {unknown[0]} cannot be formed ({problem}); replace it, for instance by "
                    "its counterpart in opacus.layers (DPLSTM, DPGRU, DPMultiheadAttention)"
                )
            raise ConfigError(
                f"per-sample gradients cannot be formed, because the model or its loss fails ({problem}) where it sees "
                "one row at a time, by torch.func.vmap; write it without .item(), without branches on values and "
                "without selecting rows, or train without DP-SGD"
            )
    if not known:
        _check_alone(network, loss, inputs, targets, way)
    return way


def _refuse_coarse(network: FlatNetwork) -> None:
    """Refuse parameters in which sums of clipped gradients are rounded by more than their bound is shrunk by."""
    for parameter in network.parameters:
        if torch.finfo(parameter.dtype).eps > torch.finfo(torch.float32).eps:
            raise ConfigError(
                f"the model has parameters in {parameter.dtype}, too coarse for sums of clipped gradients to keep to "
                "their bound; keep them in float32, and set precision = 'bfloat16' for passes in half the width"
            )


def _check_alone(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor, way: GradSampleMode) -> None:
    """Refuse what fails on single rows, in evaluation or in training mode, or could look past them."""
    module, training = network.module, network.module.training
    clipper = PerSampleGradients(network, way)
    try:
        for mode in (False, True):
            module.train(mode)
            for layer in module.modules():
                if isinstance(layer, _DROPOUT):
                    layer.eval()
            norms = clipper.clipped_sum(loss, inputs, targets, 1.0)
            if not bool(norms.isfinite().all()):
                raise ConfigError(
                    f"in {'training' if mode else 'evaluation'} mode the gradient of a row that is alone in its batch "
                    "is not finite, and DP-SGD hands the model one row at a time; let no layer normalise over the "
                    "batch, but for instance over groups of channels (GroupNorm)"
                )
    except FAILURES as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            "the model or its loss sees one row at a time, by torch.func.vmap, and fails there "
            f"({failure(error, module)}); mend it, or train without DP-SGD"
        ) from error
    finally:
        module.train(training)


def _row_gradient(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor, row: int) -> Tensor:
    with torch.enable_grad():
        total = loss(network.module, inputs[row : row + 1], targets[row : row + 1]).sum()
    return torch.cat([gradient.flatten() for gradient in network.gradient_of(total)])


def _wrong(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor, way: GradSampleMode) -> str:
    """How ``way`` fails to clip samples as single ones are clipped; empty if it does not.

    Of two nearly equal numbers rounding decides which one is the maximum, and so where a gradient goes, and a batch is
    rounded otherwise than a row. So sums that differ in float32 are those of single samples if they do not differ in
    float64, nor for other rows in float32.
    """
    problem = _compared(network, loss, inputs, targets, way)
    if problem != DIFFERENT:
        return problem
    try:
        if _compared(network, loss, _others(inputs), targets, way):
            return DIFFERENT
        wide = FlatNetwork(deepcopy(network.module).double())
        exact = inputs.double() if inputs.is_floating_point() else inputs
        return DIFFERENT if _compared(wide, loss, exact, targets, way) else ""
    except FAILURES:  # such as a layer that computes in float32 whatever its parameters are
        return DIFFERENT


def _others(inputs: Tensor) -> Tensor:
    """Other public rows, made of ``inputs``."""
    turned = inputs.flip(-1)
    return turned * 0.9 if turned.is_floating_point() else turned


def _compared(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor, way: GradSampleMode) -> str:
    """How sums by ``way`` fail, or differ from those of single samples; empty if they do not."""
    rows = torch.stack([_row_gradient(network, loss, inputs, targets, row) for row in range(len(inputs))])
    norms = rows.norm(dim=1)
    bound = float(norms.median()) * 0.7 + 1e-12  # some samples are clipped, by different factors
    clipped = rows * (shrunk(bound, rows.dtype) / norms.clamp_min(1e-30)).clamp(max=1)[:, None]
    for count in (len(rows), len(rows) - 1):
        try:
            PerSampleGradients(network, way).clipped_sum(loss, inputs[:count], targets[:count], bound)
        except FAILURES as error:
            return failure(error, network.module)
        expected = clipped[:count].sum(0)
        if not float((network.gradient - expected).abs().max()) <= 1e-3 * (float(expected.abs().max()) + 1e-12):
            return DIFFERENT
    return ""
