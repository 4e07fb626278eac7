"""privfl: federated learning whose privacy claims are computed, tested and attacked.

.. code-block:: python

    import privfl as pf

    task = pf.load("digits", partition=pf.Dirichlet(clients=20, alpha=0.5))
    run = pf.simulate(
        task,
        pf.FedSampling(samples_per_round=400),
        privacy=pf.Privacy(
            training=pf.DPSGD(target_epsilon=3.0, noise_at="server"),
            size=pf.LaplaceSize(epsilon=3.0, bound=150, lower=30),
        ),
        rounds=50,
    )
    print(run.statement)
"""

from importlib import import_module
from typing import Any

import lazy_loader

import_module("privfl.late_scipy").install()  # before anybody imports dp_accounting
_import, _, _stubs = lazy_loader.attach_stub(__name__, __file__)  # the public names stand in __init__.pyi
__all__ = sorted([*_stubs, "__version__", "attacks", "audits"])


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the command line's help must not wait for torch."""
    if name == "__version__":
        from importlib.metadata import version  # slow to import

        value: Any = version("privfl")
    elif name in ("attacks", "audits"):
        value = import_module("privfl.companions").companion(name)
    else:
        value = _import(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
