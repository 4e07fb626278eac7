"""Adding uploads up under secure aggregation: the server gets their sum, and nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from privfl.algorithms.base import Tensors
from privfl.engine.aggregation import CohortSums
from privfl.engine.measures import NOTHING, Measured
from privfl.engine.workspace import Phase, cores
from privfl.privacy.channel.secure_encoding import WEIGHT
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.errors import BadShare, BadVector, TooFewClients
from privfl.privacy.secagg.rules import LEAST_HONEST

OUT_OF_RANGE = "sent a number beyond the range of the secure sum"
GIVEN_UP = "took part in a secure sum that was aborted"


class SecureAggregator:
    """Encodes each upload at its client and submits it to one session; memory is that of one upload.

    Every client asked is a member of the session, so its keys and shares are exchanged before anybody trains; who then
    sends nothing has dropped out, and the others recover the sum without it.
    """

    def __init__(
        self, phase: Phase, members: list[int], weights: Sequence[float], like: Tensor, source: NoiseSource
    ) -> None:
        """``weights``: of the ``members``, as far as the server knows them; ``like`` [size] is the model.

        Raises:
            ConfigError: no secure sum over these members is safe.
        """
        channel = phase.channel
        assert channel.secure is not None
        assert channel.secure_encoding is not None
        self.phase, self.channel, self.like, self.source = phase, channel, like, source
        self.secure_encoding = channel.secure_encoding
        self.weights = dict(zip(members, map(float, weights), strict=True))
        encoding = self.secure_encoding.encoding
        self.number = channel.round.number
        terms = self.secure_encoding.terms
        session = channel.secure.session(
            members,
            length=encoding.length,
            bits=encoding.bits,
            round=channel.round.number,
            least_honest=LEAST_HONEST if terms is None else terms.survivors,
            encoding=self.secure_encoding.digest,
            cohort=channel.asked,
        )
        self.sum = channel.secure.open(session, cores())

    def add(self, client: int, upload: Tensors, factor: float, known: Measured = NOTHING) -> str:
        """Encode and submit one upload; why it cannot be used, empty if it can."""
        values: dict[str, Tensor] = {}
        for field in self.channel.sent:
            value = upload[field.name]
            value = value if value.dtype in (torch.float32, torch.float64) else value.float()
            values[field.name] = value * factor if field.weighted and factor != 1 else value
        if self.channel.hides_weights:
            values[WEIGHT] = torch.tensor([factor], dtype=torch.float64)
        rounding, shares = (
            self.source.stream(use + self.phase.label, self.number, client) for use in ("rounding", "share")
        )
        try:
            vector = self.secure_encoding.vector(values, rounding, shares)
        except BadVector:
            return OUT_OF_RANGE
        self.sum.submit(client, vector)
        if not self.channel.hides_weights:
            self.weights[client] = factor
        return ""

    def close(self, sums: CohortSums) -> None:
        """Open the sum; with too few survivors there is none, and the round is given up."""
        try:
            total, survivors = self.sum.close()
            decoded = self.secure_encoding.sums(total, len(survivors))
        except (TooFewClients, BadShare, BadVector):
            sums.problems[GIVEN_UP] += len(self.weights) - sum(sums.problems.values())
            sums.aborted = True
            return
        for field in self.channel.sent:
            shape = self.like.shape if field.shape is None else field.shape
            numbers = torch.from_numpy(np.ascontiguousarray(decoded[field.name]))
            sums.total[field.name] = numbers.to(self.like.device).view(shape)  # float64, until the noise is added
        sums.members = sorted(survivors)
        sums.weights = [self.weights[client] for client in sums.members]
        sums.weight = float(decoded[WEIGHT][0]) if self.channel.hides_weights else sum(sums.weights)
