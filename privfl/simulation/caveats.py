"""What a reader of a statement must know besides its table."""

from __future__ import annotations

from privfl.algorithms.base import Algorithm, Tensors
from privfl.federation.task import Task
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.settings import Privacy

SHARED = "{} samples are held by more than one client; every claim is about one client's copy."
SECRET_DRAW = (
    "The claim for clients before the public holds while it stays secret who took part: publish this cell of the table "
    "alone, and of the run directory neither checkpoint, timings nor the server's transcript; metrics and summary leave "
    "out what the draw decides."
)
ADAPTED = "The sampling rate follows from the size answers; the claim composes the rates that these answers led to."

OWN_ROWS = (
    "Local and personal metrics are measured on rows that clients hold back; no claim covers them, and publishing them "
    "is one more release."
)
OWN_MODELS = (
    "The test figures are those of the clients' own models, which noise on updates does not cover; publishing them is "
    "one more release."
)
TRUSTED_SUM = (
    "Secure sums were computed by a trusted party (mode 'ideal'); the column 'server' holds for a run of the protocol, "
    "not for this one."
)
SECURE_SUM = (
    "The column 'server' rests on secure aggregation: a {adversary} server that works with at most {corrupt:g} % of a "
    "cohort sees sums only, except with probability about 2^-40 and as long as the cryptography holds."
)


def caveats(task: Task, algorithm: Algorithm, server: Tensors, privacy: Privacy, channel: ChannelSpec) -> list[str]:
    """The sentences that hold for a run of ``task`` that ended in the state ``server``."""
    found = []
    if task.report is not None and task.report.shared:
        found.append(SHARED.format(task.report.shared))
    if "rate" in server and privacy.size is not None and privacy.training is not None:
        found.append(ADAPTED)
    if task.local_tests is not None:
        found.append(OWN_ROWS)
    if algorithm.ensemble and channel.noise is not None:
        found.append(OWN_MODELS)
    if channel.amplified:
        found.append(SECRET_DRAW)
    if channel.secure is not None:
        words = SECURE_SUM if channel.secure.mode == "protocol" else TRUSTED_SUM
        found.append(words.format(adversary=channel.secure.adversary, corrupt=100 * channel.secure.corrupt))
    return found
