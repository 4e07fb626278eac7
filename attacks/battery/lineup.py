"""Which attacks are tried on a run, in which order, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attacks.attack import Attack
from attacks.gradient_inversion.fishing import Fishing
from attacks.gradient_inversion.imprint_attack import Imprint
from attacks.gradient_inversion.inversion import GradientInversion
from attacks.gradient_inversion.model_inconsistency import ModelInconsistency
from attacks.judge import Judge
from attacks.labels.inference import LLG, DisclosedCounts, LabelCounts
from attacks.membership.fedmia import FedMIA
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.matched_filter_attack import MatchedFilter
from attacks.membership.poisoning import PoisonedMembership
from attacks.membership.rmia import RMIA
from attacks.membership.shadow_models import ShadowTraining
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
from privfl.simulation.transcript import Transcript

FEW, MANY = ShadowTraining(count=4), ShadowTraining(count=16)


@dataclass(frozen=True)
class Entry:
    """An attack by the ``label`` that its result is filed under, its class, and settings besides the defaults."""

    label: str
    kind: type[Attack]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Attack:
        """The attack.

        Raises:
            ConfigError: it does not work with these settings, such as a method for one image on several.
        """
        return self.kind(**self.settings)


def lineup(seen: Transcript, judge: Judge) -> list[Entry]:
    """All attacks, those that only watch first, then active servers, then poisoning clients.

    Where single messages were seen, membership is asked of the client that holds most of those that took part in the
    first round, and images of the one that holds fewest; where only sums were seen, of everybody.
    """
    sizes = judge.task.clients.sizes
    exchanges = seen[0].exchanges if len(seen) else ()
    single = not exchanges or exchanges[-1].uploads is not None
    there = [client for client in (exchanges[-1].members if exchanges else ()) if client < len(sizes)]
    there = there or list(range(len(sizes)))
    largest = max(there, key=lambda client: int(sizes[client])) if single else None
    target = min(there, key=lambda client: int(sizes[client]))
    smallest = target if single else None
    told = {} if judge.pixels is None else {"pixels": judge.pixels}
    images = {"client": smallest, "batch": int(sizes.sum() if smallest is None else sizes[smallest]), **told}
    whose = {"client": largest}
    return [
        Entry("loss-threshold", LossThreshold),
        Entry("gap", LossThreshold, {"statistic": "correct"}),
        Entry("rmia", RMIA, {"shadows": FEW}),
        Entry("lira-offline", LiRA, {"mode": "offline", "shadows": MANY}),
        Entry("lira-online", LiRA, {"shadows": MANY}),
        Entry("user-inference", UserInference, {"shadows": FEW}),
        Entry("label-counts", LabelCounts),
        Entry("llg", LLG),
        Entry("disclosed-counts", DisclosedCounts),
        Entry("size-from-responses", SizeFromResponses),
        Entry("size-from-updates", SizeFromUpdates),
        Entry("property", PropertyInference),
        Entry("words", Words, {"client": smallest, "texts": images["batch"]}),
        Entry("word-order", WordOrder, {"client": smallest, "texts": images["batch"]}),
        Entry("gradient-alignment", GradientAlignment, whose),
        Entry("gradient-difference", GradientDifference, whose),
        Entry("gradient-spread", GradientSpread, whose),
        Entry("loss-drop", LossDrop, whose),
        Entry("loss-trajectory", LossTrajectory, whose),
        Entry("fedmia", FedMIA, whose),
        Entry("matched-filter", MatchedFilter, whose),
        Entry("matched-filter-anybody", MatchedFilter),
        Entry("source-inference", SourceInference),
        Entry("prototype-tracing", PrototypeTracing, whose),
        Entry("prototype-inversion", PrototypeInversion, {**whose, **told}),
        *(
            Entry(f"gradient-inversion-{method}", GradientInversion, {**images, "method": method})
            for method in ("analytic", "spear", "wiener", "inverting-gradients")
        ),
        Entry("imprint", Imprint, images),
        Entry("model-inconsistency", ModelInconsistency, {"client": target, "batch": int(sizes[target]), **told}),
        Entry("fishing", Fishing, images),
        Entry("poisoned-membership", PoisonedMembership),
    ]
