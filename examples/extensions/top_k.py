"""A mechanism for uploads in one file: only the largest numbers of an update leave the client."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from privfl.errors import ConfigError
from privfl.privacy.mechanisms.mechanism import Kind, Mechanism


@dataclass(frozen=True)
class TopK(Mechanism):
    """Top-k sparsification (Aji and Heafield, EMNLP 2017): all but the ``fraction`` largest numbers become zero.

    It claims nothing and costs nothing: put it before ``Clip`` and the noise, which cover whatever it leaves.
    """

    kind: ClassVar[Kind] = "transform"
    fraction: float = 0.1

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"TopK's fraction is {self.fraction!r}; give a number in (0, 1]")

    def at_client(self, update, noise, round):
        flat = update.flatten()
        kept = flat.abs().topk(max(1, int(self.fraction * flat.numel()))).indices
        return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(update)


if __name__ == "__main__":
    import privfl as pf

    task = pf.load("digits", partition=pf.IID(clients=20), model="logistic")
    chain = [TopK(0.2), pf.Clip(1.0), pf.DiscreteGaussianNoise(4.0), pf.SecureSum()]
    run = pf.simulate(task, pf.FedAvg(weighting="uniform"), rounds=3, privacy=pf.Privacy(update=chain))
    print(run.statement)
