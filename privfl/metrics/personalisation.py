"""How good clients' own models are: on their own data (T_p), on everybody's (T_r), and both at once (T_l).

The measures of GRP-FED (arXiv 2108.13858, section 4), all of them macro-F1 with the classes that occur in targets or
predictions; a class without a hit counts 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def macro_f1(predictions: Tensor, targets: Tensor) -> float:
    """Macro-F1 in [0, 1] of classes ``predictions`` [N], or logits [N, classes], against ``targets`` [N].

    Averages over the classes that occur in either. (Counting absent classes as 0 cannot be what GRP-FED's authors did:
    they report T_p = 0.933 for patients most of whom lack most classes.)
    """
    from sklearn.metrics import f1_score

    if predictions.dim() == 2:
        predictions = predictions.argmax(1)
    return float(f1_score(targets.cpu().numpy(), predictions.cpu().numpy(), average="macro", zero_division=0))


def harmonic_mean(first: Tensor, second: Tensor) -> Tensor:
    """2ab/(a + b) entry by entry, and 0 where both are 0."""
    total = first + second
    return torch.where(total > 0, 2 * first * second / torch.where(total > 0, total, 1), 0)


def personal_scores(own: Tensor, everywhere: Tensor) -> dict[str, float]:
    """T_p, T_r and both readings of T_l from every client's scores.

    Args:
        own: score of client m's model on its own test data; [m], in [0, 1].
        everywhere: score of the same model on the data of all clients; [m].

    Returns:
        ``T_p`` and ``T_r``, their means; ``T_l``, the mean of the clients' harmonic means; ``T_l_of_means``, the
        harmonic mean of T_p and T_r, which is equation (6) of GRP-FED read literally. The first never exceeds the
        second (the harmonic mean is concave), and all 16 rows of the paper's Table 1 lie below the second.
    """
    own, everywhere = own.double(), everywhere.double()
    personal, reach = own.mean(), everywhere.mean()
    return {
        "T_p": float(personal),
        "T_r": float(reach),
        "T_l": float(harmonic_mean(own, everywhere).mean()),
        "T_l_of_means": float(harmonic_mean(personal, reach)),
    }


def personalisation(
    own: Sequence[tuple[Tensor, Tensor]],
    everywhere: Sequence[Tensor],
    targets: Tensor,
    global_predictions: Tensor | None = None,
) -> dict[str, float]:
    """T_g, T_p, T_r and T_l of a federation, from what its models predict.

    Args:
        own: for every client the predictions (classes [n] or logits [n, classes]) of its own model on its own test
            data, and the targets [n] there.
        everywhere: for every client the predictions of the same model on the global test data, N rows.
        targets: classes [N] of the global test data.
        global_predictions: predictions of the global model there; without them there is no ``T_g``.
    """
    scores = personal_scores(
        torch.tensor([macro_f1(predicted, truth) for predicted, truth in own], dtype=torch.float64),
        torch.tensor([macro_f1(predicted, targets) for predicted in everywhere], dtype=torch.float64),
    )
    if global_predictions is None:
        return scores
    return {"T_g": macro_f1(global_predictions, targets), **scores}
