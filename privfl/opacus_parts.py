"""What privfl takes from Opacus, imported without its side effect.

Opacus 1.6 configures logging when it is imported: it puts a handler on the root logger, so that a program that sets up
its own logging afterwards finds it set up already. Nobody else in the house imports Opacus.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _root_logger_untouched() -> Iterator[None]:
    """``logging.basicConfig`` does nothing where the root logger has a handler: give it one for the time being."""
    placeholder = logging.NullHandler()
    logging.root.addHandler(placeholder)
    try:
        yield
    finally:
        logging.root.removeHandler(placeholder)


with _root_logger_untouched():
    from opacus.accountants.analysis.prv import (
        Domain,
        PoissonSubsampledGaussianPRV,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        compute_safe_domain_size,
        discretize,
    )
    from opacus.grad_sample import GradSampleModule
    from opacus.layers.dp_rnn import DPLSTM, DPLSTMCell, RNNLinear
    from opacus.validators import ModuleValidator

__all__ = [
    "DPLSTM",
    "DPLSTMCell",
    "Domain",
    "GradSampleModule",
    "ModuleValidator",
    "PoissonSubsampledGaussianPRV",
    "RNNLinear",
    "TruncatedPrivacyRandomVariable",
    "compose_heterogeneous",
    "compute_safe_domain_size",
    "discretize",
]
