"""In no run do two uses of noise share a stream: whoever sees both could subtract one from the other."""

from collections import Counter

import numpy as np
import pytest

import privfl as pf
from privfl.privacy.noise.source import KEY_BYTES, NoiseSource

UNIFORM = pf.FedAvg(weighting="uniform")
DP_SGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)
ON_SUM = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
IDEAL = pf.SecureSum(mode="ideal")
SIZE = pf.LaplaceSize(epsilon=8.0, bound=60, refresh="every_round")
LOSS = pf.NoisyTotal("loss", 1.0, 1.0)
TASK = pf.Task.from_arrays(
    np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32),
    np.arange(60) % 3,
    partition=pf.IID(clients=4),
    model="logistic",
)
RUNS = {
    "DP-SGD": (UNIFORM, {"training": DP_SGD}),
    "totals and DP-SGD": (pf.QFedAvg(), {"training": DP_SGD, "statistics": [LOSS]}),
    "a survey, its total and DP-SGD": (pf.AFL(), {"training": DP_SGD, "statistics": [LOSS]}),
    "noise of clients": (UNIFORM, {"update": [pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")]}),
    "DP-SGD and noise of clients": (
        UNIFORM,
        {"training": DP_SGD, "update": [pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")]},
    ),
    "noise of the server": (UNIFORM, {"update": [pf.Clip(1.0), pf.GaussianNoise(1.0)]}),
    "noise in shares": (UNIFORM, {"update": [pf.Clip(1.0), pf.DiscreteGaussianNoise(1.0), IDEAL]}),
    "sizes and noise on a sum": (
        pf.FedSampling(samples_per_round=20),
        {"training": ON_SUM, "size": SIZE, "max_size_error": 100.0},
    ),
}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("name", RUNS)
def test_no_two_uses_of_noise_share_their_labels(name, engine, monkeypatch):
    algorithm, privacy = RUNS[name]
    drawn, right = Counter(), NoiseSource.stream

    def noting(self, *labels):
        if self.key != bytes(KEY_BYTES):  # the noise of public random values, on which engines are compared
            drawn[labels] += 1
        return right(self, *labels)

    monkeypatch.setattr(NoiseSource, "stream", noting)
    pf.simulate(
        TASK,
        algorithm,
        rounds=3,
        training=pf.LocalTraining(batch_size=8, steps=1),
        privacy=pf.Privacy(noise_key=5, **privacy),
        execution=pf.Execution(engine=engine, workers=1),
        evaluate_every=100,
    )
    assert len(drawn) >= 3
    assert [labels for labels, times in drawn.items() if times > 1] == []
