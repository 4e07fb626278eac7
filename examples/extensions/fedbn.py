"""FedBN in one file: normalisation layers stay with their client."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import privfl as pf
from privfl.algorithms.personal.partial_sharing import Split

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class FedBN(Split):
    """FedBN (Li et al., ICLR 2021): clients upload everything but the parameters of their normalisation layers.

    privfl's own networks normalise by groups; the paper's batch normalisation couples the rows of a batch.
    """

    name: ClassVar[str] = "fedbn"

    def part(self):
        private = {name for name, layer in self.context.network().named_modules() if isinstance(layer, NORMS)}
        layout = self.context.layout
        shared = torch.tensor([name.rpartition(".")[0] not in private for name in layout.names])
        return shared.repeat_interleave(torch.tensor(layout.sizes)).to(self.context.device)


if __name__ == "__main__":
    task = pf.load("digits", partition=pf.Dirichlet(clients=5, alpha=0.5), model="resnet8")
    print(pf.simulate(task, FedBN(), rounds=2).summary)
