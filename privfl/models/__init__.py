"""Networks by family: GroupNorm instead of BatchNorm, ``features()`` and ``head`` everywhere.

:func:`~privfl.models.registry.build` makes one by name, :func:`models` lists them; :class:`Network` turns any two
modules into one.
"""

from privfl.models.base import Network
from privfl.models.registry import (
    Initialisation,
    InputKind,
    ModelInfo,
    NamedModel,
    OwnModel,
    build,
    default_model,
    models,
    takes_images_only,
)

__all__ = [
    "Initialisation",
    "InputKind",
    "ModelInfo",
    "NamedModel",
    "Network",
    "OwnModel",
    "build",
    "default_model",
    "models",
    "takes_images_only",
]
