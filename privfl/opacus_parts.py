"""What privfl takes from Opacus: imported late, for the host, and without its side effect.

Opacus takes a second and more to import, so it waits until a part of it is asked for: ``from privfl.opacus_parts import
DPLSTM`` stands inside the function that needs it. And Opacus 1.6 configures logging when it is imported: it puts a
handler on the root logger, so that a program that sets up its own logging afterwards finds it set up already. Nobody
else in the house imports Opacus.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.prv import (
        Domain,
        PoissonSubsampledGaussianPRV,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        discretize,
    )
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
    from opacus.grad_sample import GradSampleModule
    from opacus.layers.dp_rnn import DPLSTM, DPLSTMCell, RNNLinear
    from opacus.validators import ModuleValidator

_HOMES = {
    "RDPAccountant": "accountants",
    "Domain": "accountants.analysis.prv",
    "PoissonSubsampledGaussianPRV": "accountants.analysis.prv",
    "TruncatedPrivacyRandomVariable": "accountants.analysis.prv",
    "compose_heterogeneous": "accountants.analysis.prv",
    "discretize": "accountants.analysis.prv",
    "compute_rdp": "accountants.analysis.rdp",
    "get_privacy_spent": "accountants.analysis.rdp",
    "GradSampleModule": "grad_sample",
    "DPLSTM": "layers.dp_rnn",
    "DPLSTMCell": "layers.dp_rnn",
    "RNNLinear": "layers.dp_rnn",
    "ModuleValidator": "validators",
}
"""For each part the module of Opacus that has it."""

__all__ = [
    "DPLSTM",
    "DPLSTMCell",
    "Domain",
    "GradSampleModule",
    "ModuleValidator",
    "PoissonSubsampledGaussianPRV",
    "RDPAccountant",
    "RNNLinear",
    "TruncatedPrivacyRandomVariable",
    "compose_heterogeneous",
    "compute_rdp",
    "discretize",
    "get_privacy_spent",
]


def __getattr__(name: str) -> Any:
    """The part of Opacus of this ``name``; the first one imports it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch  # not before somebody needs it: accounting does without

    # Under the device "meta" PyTorch 2.6 cannot load the compiler that Opacus asks for, and is left with half of it.
    with _root_logger_untouched(), torch.device("cpu"):
        part = getattr(import_module(f"opacus.{_HOMES[name]}"), name)
    globals()[name] = part
    return part


def if_loaded(*names: str) -> tuple[type[Any], ...]:
    """These classes of Opacus if anybody has imported it; none if not, and then no object can be one of theirs."""
    return tuple(getattr(sys.modules[__name__], name) for name in names) if "opacus" in sys.modules else ()


@contextmanager
def _root_logger_untouched() -> Iterator[None]:
    """``logging.basicConfig`` does nothing where the root logger has a handler: give it one for the time being."""
    placeholder = logging.NullHandler()
    logging.root.addHandler(placeholder)
    try:
        yield
    finally:
        logging.root.removeHandler(placeholder)
