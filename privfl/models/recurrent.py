"""A stacked LSTM for token sequences [B, L]: the next-character and next-word models of the federated literature."""

from __future__ import annotations

from torch import Tensor, nn

from privfl.models.base import Network, Size
from privfl.opacus_parts import DPLSTM


class LastState(nn.Module):
    """Opacus' DPLSTM, read at the last time step.

    It is made of linear layers that are called once per step, so ``torch.func`` transforms go through it: stacked
    clients and per-sample gradients by ``vmap(grad)`` equal a loop over rows, as tested.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, bias: bool) -> None:
        super().__init__()
        self.lstm = DPLSTM(inputs, hidden, num_layers=layers, bias=bias, batch_first=True)
        # DPLSTM registers its cells' parameters a second time, under the names of nn.LSTM. One owner per parameter
        # keeps state dictionaries free of duplicates and lets rules for linear layers see the cells as what they are.
        self.lstm.set_rename_map({})
        for name, _ in list(self.lstm.named_parameters(recurse=False)):
            delattr(self.lstm, name)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, inputs] -> [B, hidden]."""
        output: Tensor = self.lstm(x)[0]
        return output[:, -1]


def lstm(
    vocabulary: int,
    classes: int,
    *,
    embedding_dim: Size = 8,
    hidden: Size = 256,
    layers: Size = 2,
    bias: bool = True,
) -> Network:
    """Embedding, ``layers`` LSTM layers, and a head on the last step's state, to predict one of ``classes``.

    The defaults are the character model of McMahan et al. (2017, §3): embedding of 8, two layers of 256. SuPerFed's
    code has the same without biases in the recurrent and the linear layers: ``bias=False``.
    """
    body = nn.Sequential(nn.Embedding(vocabulary, embedding_dim), LastState(embedding_dim, hidden, layers, bias))
    return Network(body, nn.Linear(hidden, classes, bias=bias))
