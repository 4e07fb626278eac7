"""All attacks by name: what each needs to see and to have, and how it is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attacks.attack import Attack
from attacks.gradient_inversion.inversion import GradientInversion
from attacks.labels.inference import LLG, DisclosedCounts, LabelCounts
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.rmia import RMIA
from attacks.membership.update_attacks import GradientAlignment, GradientDifference, LossDrop, LossTrajectory
from attacks.property_inference import PropertyInference
from attacks.prototypes.inversion import PrototypeInversion
from attacks.prototypes.membership import PrototypeTracing
from attacks.sizes.inference import SizeFromResponses, SizeFromUpdates


@dataclass(frozen=True)
class Needs:
    """What an attack reads.

    Args:
        fields: of the transcript, besides the public facts: names of upload fields, ``sizes`` (answers about sizes), or
            ``released`` (the models that the server evaluates).
        public: whether it needs public records of the victims' domain.
        candidates: whether it needs records to ask about.
        truth: what its judge reads, as :class:`attacks.auxiliary.Auxiliary` names it.
    """

    fields: tuple[str, ...]
    public: bool
    candidates: bool
    truth: tuple[str, ...]


_MEMBERS = ("members",)
_TABLE: tuple[tuple[type[Attack], Needs], ...] = (
    (LossThreshold, Needs(("released",), public=False, candidates=True, truth=_MEMBERS)),
    (LiRA, Needs(("released",), public=True, candidates=True, truth=_MEMBERS)),
    (RMIA, Needs(("released",), public=True, candidates=True, truth=_MEMBERS)),
    (GradientAlignment, Needs(("update",), public=False, candidates=True, truth=_MEMBERS)),
    (GradientDifference, Needs(("update",), public=False, candidates=True, truth=_MEMBERS)),
    (LossTrajectory, Needs(("update",), public=False, candidates=True, truth=_MEMBERS)),
    (LossDrop, Needs(("update",), public=False, candidates=True, truth=_MEMBERS)),
    (
        PrototypeTracing,
        Needs(("update", "prototype_sums", "prototype_counts"), public=True, candidates=True, truth=_MEMBERS),
    ),
    (
        PrototypeInversion,
        Needs(
            ("update", "prototype_sums", "prototype_counts"), public=True, candidates=False, truth=("images", "labels")
        ),
    ),
    (GradientInversion, Needs(("update",), public=True, candidates=False, truth=("images",))),
    (LabelCounts, Needs(("update",), public=True, candidates=False, truth=("counts",))),
    (LLG, Needs(("update",), public=True, candidates=False, truth=("counts",))),
    (DisclosedCounts, Needs(("prototype_counts",), public=True, candidates=False, truth=("counts",))),
    (SizeFromUpdates, Needs(("update",), public=True, candidates=False, truth=("sizes",))),
    (SizeFromResponses, Needs(("sizes",), public=False, candidates=False, truth=("sizes",))),
    (PropertyInference, Needs(("update",), public=True, candidates=False, truth=("property",))),
)

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType({attack.name: attack for attack, _ in _TABLE})
"""The attacks by the names that configuration files use."""
NEEDS: Mapping[str, Needs] = MappingProxyType({attack.name: needs for attack, needs in _TABLE})
"""What each of them reads."""


def needs_of(name: str) -> dict[str, Any]:
    """The needs of the attack ``name`` as text, for a table."""
    needs = NEEDS[name]
    has = [word for word, wanted in (("public records", needs.public), ("candidates", needs.candidates)) if wanted]
    return {
        "observer": ATTACKS[name].observer,
        "reads": ", ".join(needs.fields),
        "has": ", ".join(has) or "nothing",
    }
