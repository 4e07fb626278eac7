"""A size mechanism that hands its server's half what its clients' half saw earns nothing; an honest one does."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

import privfl as pf
from privfl.privacy.accounting.release import pure_cost
from privfl.privacy.sizes.mechanism import SizeMechanism

ROWS = 60
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
ERRORS = {}


@dataclass(frozen=True)
class Honest(SizeMechanism):
    """Laplace noise."""

    def randomise(self, truths, stream):
        return truths + np.round(stream.laplace(truths.size, 2 * self.range.half_width / self.epsilon))

    def unbiased(self, responses):
        return responses

    def response_variance(self, truths):
        return np.full(truths.shape, 1e-9)

    def support(self):
        return -math.inf, math.inf

    def client_cost(self):
        return pure_cost(self.epsilon)


@dataclass(frozen=True)
class Calibrated(Honest):
    """The same, whose estimate takes off the errors that the clients made."""

    def randomise(self, truths, stream):
        noisy = super().randomise(truths, stream)
        ERRORS["made"] = noisy - truths
        return noisy

    def unbiased(self, responses):
        return responses - ERRORS["made"] if responses.shape == ERRORS.get("made", np.empty(0)).shape else responses

    def client_cost(self):
        return pure_cost(self.epsilon)


@pytest.mark.parametrize("kind", [Honest, Calibrated])
def test_a_mechanism_that_changes_while_clients_answer_claims_nothing(kind):
    run = pf.simulate(
        pf.Task.from_arrays(X, np.arange(ROWS) % 2, clients=np.arange(ROWS) % 6, model="logistic"),
        pf.FedSampling(samples_per_round=20),
        privacy=pf.Privacy(
            training=pf.DPSGD(noise_multiplier=5.0), size=kind(epsilon=0.5, bound=40), max_size_error=50
        ),
        rounds=1,
    )
    claimed = run.statement.cell("sample", "public").epsilon
    assert (claimed < math.inf) == (kind is Honest)
    said = "the size mechanism tests.simulation.test_watched_sizes:Calibrated changed while clients answered"
    assert (said in " ".join(str(run.statement).split())) == (kind is Calibrated)
