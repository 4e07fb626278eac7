"""What the numbers of a study say, in sentences that are computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privfl.privacy.accounting.printed import round_up
from privfl.study.summary import Summary


@dataclass(frozen=True)
class Measure:
    """What runs are judged by.

    Args:
        key: its name in a run's metrics.
        name: for readers.
        share: whether it is a share in [0, 1], shown in percent.
        lower_is_better: whether less of it is better.
    """

    key: str = "test_accuracy"
    name: str = "test accuracy"
    share: bool = True
    lower_is_better: bool = False

    def show(self, value: float) -> str:
        """One value, as ``91.2 %`` or ``0.0312``."""
        return f"{100 * value:.1f} %" if self.share else f"{value:.4g}"

    def text(self, row: Summary) -> str:
        """Mean and spread over seeds, as ``91.2 ± 0.4 %``, or ``91.2 %`` where one seed tells no spread."""
        if math.isnan(row.deviation):
            return self.show(row.value)
        if self.share:
            return f"{100 * row.value:.1f} ± {100 * row.deviation:.1f} %"
        return f"{row.value:.4g} ± {row.deviation:.2g}"

    def gap(self, difference: float) -> str:
        """How far two values lie apart."""
        return f"{100 * difference:.1f} points" if self.share else f"{difference:.3g}"


ACCURACY = Measure()


def percent(row: Summary) -> str:
    """Accuracy as ``91.2 ± 0.4 %``, or ``91.2 %`` where one seed tells no spread."""
    return ACCURACY.text(row)


def findings(rows: Sequence[Summary], cell: str = "sample/public", measure: Measure = ACCURACY) -> list[str]:
    """What the numbers say: one sentence for each method, and who is ahead at each level, if the seeds can tell."""
    sentences = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        bare = next((row for row in mine if row.epsilons[cell] is None), None)
        private = [(value, row) for row in mine if (value := row.epsilons[cell]) is not None]
        if not private:
            continue
        parts = [
            f"{measure.text(row)} at ε = {round_up(value)}" for value, row in sorted(private, key=lambda pair: -pair[0])
        ]
        start = f"{method} reaches {measure.text(bare)} with nothing claimed, and " if bare else f"{method} reaches "
        server = all(row.epsilons[cell.replace("public", "server")] is not None for _, row in private)
        where = "its claims hold against the server too" if server else "its claims hold for the public only"
        sentences.append(f"{start}{', '.join(parts)} ({where}).")
    for level in dict.fromkeys(row.level for row in rows):
        sign = 1 if measure.lower_is_better else -1
        group = sorted((row for row in rows if row.level == level), key=lambda row: sign * row.value)
        if len(group) > 1 and not math.isnan(group[0].deviation) and not math.isnan(group[1].deviation):
            gap, spread = abs(group[0].value - group[1].value), math.hypot(group[0].deviation, group[1].deviation)
            clear = "more than" if gap > 2 * spread else "not more than"
            settled = "" if gap > 2 * spread else ", so these seeds do not settle it"
            ahead, behind = (row.epsilons[cell.replace("public", "server")] for row in group[:2])
            trust = ", but claims nothing against the server" if ahead is None and behind is not None else ""
            sentences.append(
                f"At '{level}' {group[0].method} is {measure.gap(gap)} ahead of {group[1].method}, {clear} twice "
                f"the spread over seeds{settled}{trust}."
            )
    return sentences
