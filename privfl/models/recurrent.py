"""A stacked LSTM for token sequences [B, L]: the next-character and next-word models of the federated literature."""

from __future__ import annotations

from torch import Tensor, nn

from privfl.models.base import Network, Size


class EveryState(nn.Module):
    """Opacus' DPLSTM, read at every time step.

    It is made of linear layers that are called once per step, so ``torch.func`` transforms go through it: stacked
    clients and per-sample gradients by ``vmap(grad)`` equal a loop over rows, as tested.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, bias: bool) -> None:
        from privfl.opacus_parts import DPLSTM

        super().__init__()
        self.lstm = DPLSTM(inputs, hidden, num_layers=layers, bias=bias, batch_first=True)
        # DPLSTM registers its cells' parameters a second time, under the names of nn.LSTM. One owner per parameter
        # keeps state dictionaries free of duplicates and lets rules for linear layers see the cells as what they are.
        self.lstm.set_rename_map({})
        for name, _ in list(self.lstm.named_parameters(recurse=False)):
            delattr(self.lstm, name)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, inputs] -> [B, L, hidden]."""
        output: Tensor = self.lstm(x)[0]
        return output


class LastState(EveryState):
    """The same, read at the last time step."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, inputs] -> [B, hidden]."""
        return super().forward(x)[:, -1]


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


def next_token_lstm(
    vocabulary: int,
    classes: int,
    *,
    embedding_dim: Size = 32,
    hidden: Size = 128,
    layers: Size = 1,
    bias: bool = True,
) -> Network:
    """Embedding, ``layers`` LSTM layers, and a head on the state at every position: logits [B, L, ``classes``].

    What a position says depends on its token and those before it, so padding behind the end of a sequence changes
    nothing at the positions that count.
    """
    body = nn.Sequential(nn.Embedding(vocabulary, embedding_dim), EveryState(embedding_dim, hidden, layers, bias))
    return Network(body, nn.Linear(hidden, classes, bias=bias))
