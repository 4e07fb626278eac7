"""Findings that this version has not closed: the fuzzer must break their claims. Closed ones are taken off."""

from audits.fuzz.experiment import Experiment

OPEN: set[str] = set()
"""Names out of :data:`tests.claims.planted.catalogue.OUTSIDE`."""


def is_open(experiment: Experiment) -> bool:
    """Whether a drawn experiment uses what an open finding is about."""
    lost = experiment.resume is not None and experiment.resume.changed == "lost key"
    cancelling = experiment.model == "contrast" or experiment.data.common in ("large", "offset")
    return (lost and "6: a lost key" in OPEN) or (cancelling and "4: cancelling contributions of huge inputs" in OPEN)
