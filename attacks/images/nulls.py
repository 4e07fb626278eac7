"""Images that anybody could show without having seen a message: what a reconstruction must beat."""

from __future__ import annotations

import torch
from torch import Tensor

from privfl.errors import ConfigError


def image_nulls(images: Tensor, labels: Tensor, wanted: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Nulls [N, C, H, W] for victims of the classes ``wanted`` int64 [N], from public ``images`` and their ``labels``.

    ``mean image`` of all, ``class mean``, and a ``random image`` of the same class. A fourth null, the
    reconstruction from a non-member's message, is the attack's own business.

    Raises:
        ConfigError: a wanted class has no public image.
    """
    lacking = sorted(set(wanted.tolist()) - set(labels.tolist()))
    if lacking:
        raise ConfigError(f"class {lacking[0]} has no public image; give public data of all classes that are attacked")
    means = {label: images[labels == label].mean(0) for label in set(wanted.tolist())}
    drawn = []
    for label in wanted.tolist():
        rows = (labels == label).nonzero().flatten()
        drawn.append(images[rows[torch.randint(len(rows), (), generator=generator)]])
    return {
        "mean image": images.mean(0).expand(len(wanted), *images.shape[1:]).clone(),
        "class mean": torch.stack([means[label] for label in wanted.tolist()]),
        "random image": torch.stack(drawn),
    }
