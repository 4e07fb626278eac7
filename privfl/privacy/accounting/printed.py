"""ε in print. Imports nothing heavy, because tables of finished studies are read without training anything."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal


def round_up(epsilon: float) -> str:
    """ε with three significant digits, rounded up, so that print never claims more than was computed.

    >>> round_up(6.76878), round_up(0.02921), round_up(1.0), round_up(52410.2), round_up(0.0)
    ('6.77', '0.0293', '1', '52500', '0')
    """
    if not math.isfinite(epsilon):
        return "∞"
    exact = Decimal(epsilon)
    if exact <= 0:
        return "0"
    digit = Decimal(1).scaleb(exact.adjusted() - 2)
    rounded = (exact / digit).to_integral_value(ROUND_CEILING) * digit
    return f"{rounded:f}"
