"""What observers of a run could learn: attacks on transcripts, each judged beside what guessing would give.

    transcript = pf.Transcript.load("runs/fedavg")
    result = attacks.LiRA().run(transcript, auxiliary)
    print(result)

An attack is a frozen dataclass of settings. It sees a transcript and an :class:`Auxiliary` (public records, records to
ask about), never a client's data; the answers in ``auxiliary.truth`` go to the judge alone. ``ATTACKS`` holds all by
name, and ``privfl attack`` runs them from a file.
"""

from attacks.attack import Attack
from attacks.auxiliary import Auxiliary, Records
from attacks.gradient_inversion.inversion import GradientInversion
from attacks.labels.inference import LLG, DisclosedCounts, LabelCounts
from attacks.membership.game import membership_game
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.rmia import RMIA
from attacks.membership.shadow_models import ShadowTraining
from attacks.membership.update_attacks import GradientAlignment, GradientDifference, LossDrop, LossTrajectory
from attacks.property_inference import PropertyInference
from attacks.prototypes.inversion import PrototypeInversion
from attacks.prototypes.membership import PrototypeTracing
from attacks.registry import ATTACKS, NEEDS
from attacks.result import AttackResult
from attacks.sizes.inference import SizeFromResponses, SizeFromUpdates

__all__ = [
    "ATTACKS",
    "LLG",
    "NEEDS",
    "RMIA",
    "Attack",
    "AttackResult",
    "Auxiliary",
    "DisclosedCounts",
    "GradientAlignment",
    "GradientDifference",
    "GradientInversion",
    "LabelCounts",
    "LiRA",
    "LossDrop",
    "LossThreshold",
    "LossTrajectory",
    "PropertyInference",
    "PrototypeInversion",
    "PrototypeTracing",
    "Records",
    "ShadowTraining",
    "SizeFromResponses",
    "SizeFromUpdates",
    "membership_game",
]
