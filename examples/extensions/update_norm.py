"""An attack in one file: clients whose updates are long hold many examples."""

from dataclasses import dataclass
from typing import ClassVar

from attacks import Attack, Needs
from attacks.sizes.inference import SizeGuess, judge_sizes


@dataclass(frozen=True)
class UpdateNorm(Attack):
    """Believes that sizes are proportional to the mean length of a client's updates, and that their mean is public.

    Args:
        mean_size: examples of a client on average.
    """

    name: ClassVar[str] = "update-norm"
    observer: ClassVar[str] = "server"
    needs: ClassVar[Needs] = Needs(("update",), truth=("sizes",))
    mean_size: float = 100.0

    def guess(self, seen, auxiliary):
        lengths = {}
        for one in seen:
            for client, upload in one.uploads.items():
                lengths.setdefault(client, []).append(float(upload["update"].norm()))
        means = {client: sum(found) / len(found) for client, found in sorted(lengths.items())}
        average = sum(means.values()) / len(means)
        return SizeGuess({client: self.mean_size * one / average for client, one in means.items()}, self.mean_size)

    def judge(self, guess, auxiliary, seconds):
        return judge_sizes(self, guess, auxiliary, seconds)
