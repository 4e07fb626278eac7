"""All attacks by name, and what each reads as a table prints it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attacks.attack import Attack
from attacks.gradient_inversion.fishing import Fishing
from attacks.gradient_inversion.imprint_attack import Imprint
from attacks.gradient_inversion.inversion import GradientInversion
from attacks.gradient_inversion.model_inconsistency import ModelInconsistency
from attacks.labels.inference import LLG, DisclosedCounts, LabelCounts
from attacks.membership.fedmia import FedMIA
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.matched_filter_attack import MatchedFilter
from attacks.membership.poisoning import PoisonedMembership
from attacks.membership.rmia import RMIA
from attacks.membership.source import SourceInference
from attacks.membership.update_attacks import (
    GradientAlignment,
    GradientDifference,
    GradientSpread,
    LossDrop,
    LossTrajectory,
)
from attacks.membership.user_inference import UserInference
from attacks.property_inference import PropertyInference
from attacks.prototypes.inversion import PrototypeInversion
from attacks.prototypes.membership import PrototypeTracing
from attacks.sizes.inference import SizeFromResponses, SizeFromUpdates
from attacks.word_order import WordOrder
from attacks.words import Words

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType(
    {
        attack.name: attack
        for attack in (
            LossThreshold,
            LiRA,
            RMIA,
            GradientAlignment,
            GradientDifference,
            GradientSpread,
            LossTrajectory,
            FedMIA,
            MatchedFilter,
            SourceInference,
            UserInference,
            LossDrop,
            PoisonedMembership,
            PrototypeTracing,
            PrototypeInversion,
            GradientInversion,
            Imprint,
            ModelInconsistency,
            Fishing,
            LabelCounts,
            LLG,
            DisclosedCounts,
            SizeFromUpdates,
            SizeFromResponses,
            PropertyInference,
            Words,
            WordOrder,
        )
    }
)
"""The attacks by the names that configuration files use."""


def needs_of(name: str) -> dict[str, Any]:
    """The needs of the attack ``name`` as text, for a table."""
    needs = ATTACKS[name].needs
    has = [word for word, wanted in (("public records", needs.public), ("candidates", needs.candidates)) if wanted]
    return {
        "observer": ATTACKS[name].observer,
        "reads": ", ".join(needs.fields),
        "has": ", ".join(has) or "nothing",
    }


def chosen_by(name: str) -> str | None:
    """How to write what papers, or people, call ``name``: the attack with the setting that makes it that one.

    >>> chosen_by("iDLG")
    'name = "gradient-inversion", method = "idlg"'
    """
    for attack in ATTACKS.values():
        for one in attack.choices:
            if known_as(name) in (known_as(one.value), known_as(one.title), known_as(one.title.partition(",")[0])):
                return f'name = "{attack.name}", {one.setting} = "{one.value}"'
    return None


def known_as(name: str) -> str:
    """``name`` without case, spaces and hyphens, to compare by."""
    return name.lower().replace("-", "").replace(" ", "")
