"""Findings that this version has not closed: the fuzzer must break their claims. Closed ones are taken off."""

from audits.fuzz.experiment import Experiment

OPEN = {
    "1: a step that adds a row",
    "1: a step that reads the door",
    "2: Embedding(max_norm)",
    "2: a forward pass that writes a parameter",
    "2: a forward pass that counts",
    "3: a batch norm of one's own",
    "3: a trimmed loss",
    "3: mixup",
    "3: a centre loss",
    "3: a standardised statistic",
    "4: cancelling contributions of huge inputs",
    "6: a lost key",
    "7: a divisor that tells the draw",
    "8: the size of the batch of everything",
    "10: a gradient that should stay",
    "10: batches in turn",
    "10: a Poisson plan that yields all rows",
}
"""Names out of :data:`tests.claims.planted.catalogue.OUTSIDE`."""


def is_open(experiment: Experiment) -> bool:
    """Whether a drawn experiment uses what an open finding is about."""
    lost = experiment.resume is not None and experiment.resume.changed == "lost key"
    cancelling = experiment.model == "contrast" or experiment.data.common in ("large", "offset")
    return (lost and "6: a lost key" in OPEN) or (cancelling and "4: cancelling contributions of huge inputs" in OPEN)
