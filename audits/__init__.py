"""Certified lower bounds on ε: is what a run leaks within what its statement claims?

.. code-block:: python

    bound = audits.epsilon_from_counts(480, 500, 12, 500, delta=1e-5, confidence=0.95)
    print(bound)
    bound.refutes(run.statement.cell("sample", "server").epsilon)

Every :class:`LowerBound` holds with its confidence whatever was looked at on the way to it: decisions are fixed in
advance, chosen on other trials, or paid for. What an :class:`Estimate` says holds with none.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the public names stand in __init__.pyi
