"""Small runs that are interrupted, and go on for more rounds."""

import numpy as np

import privfl as pf

rng = np.random.default_rng(1)
TASK = pf.Task.from_arrays(
    rng.normal(size=(48, 5)).astype(np.float32),
    np.arange(48) % 3,
    clients=np.repeat(np.arange(6), 8),
    test=(rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3),
    classes=3,
)
CLIENT_NOISE = (pf.AdaptiveClip(1.0, count_noise=5.0), pf.GaussianNoise(1.0))
SETTINGS = {
    "nothing private": {"algorithm": pf.Scaffold()},
    "what clients keep": {"algorithm": pf.Ditto(), "training": pf.LocalTraining(learning_rate_decay=0.9)},
    "noise at the door": {
        "algorithm": pf.FedSampling(samples_per_round=12),
        "privacy": pf.Privacy(
            training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
            size=pf.LaplaceSize(3.0, 20),
            max_size_error=9.0,
            noise_key=1,
        ),
    },
    "a secret draw": {
        "algorithm": pf.FedAvg("uniform"),
        "privacy": pf.Privacy(update=CLIENT_NOISE, noise_key=1),
        "cohort": pf.PoissonCohort(0.5),
    },
    "a secure sum": {
        "algorithm": pf.FedAvg("uniform"),
        "privacy": pf.Privacy(
            update=(pf.Clip(1.0), pf.DiscreteGaussianNoise(2.0), pf.SecureSum(mode="ideal")), noise_key=1
        ),
    },
}


NOISY = {"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0)))}


def train(out, rounds, *, resume=False, callbacks=(), **settings):
    execution = pf.Execution(device="cpu", engine="loop", workers=1, checkpoint_seconds=0)
    common = {"task": TASK, "evaluate_every": 2, "execution": execution, "out": out, "callbacks": callbacks}
    return pf.simulate(**common, **settings, rounds=rounds, resume=resume)


class Stopped(Exception):
    pass


def stop_after(round):
    def stop(simulation, line):
        if line["round"] == round:
            raise Stopped

    return [stop]
