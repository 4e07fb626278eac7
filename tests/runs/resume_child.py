"""One small private run for a process of its own, so that a test can kill it."""

import privfl as pf
from privfl.simulation.simulation import simulate

ROUNDS = 40


def main(out: str, resume: bool) -> None:
    """FedSampling with noise, fresh size answers every round, drop-outs, and a fixed noise key."""
    task = pf.load(
        "digits", partition=pf.Dirichlet(clients=8, alpha=0.5), model="two-nn", model_options={"hidden": [32]}
    )
    simulate(
        task,
        pf.FedSampling(samples_per_round=300),
        rounds=ROUNDS,
        training=pf.LocalTraining(learning_rate=0.5),
        privacy=pf.Privacy(
            training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
            size=pf.LaplaceSize(epsilon=3.0, bound=400, lower=50, refresh="every_round"),
            max_size_error=10.0,
            noise_key=7,
        ),
        cohort=pf.FixedCohort(6),
        availability=pf.Bernoulli(0.8),
        out=out,
        resume=resume,
        execution=pf.Execution(
            checkpoint_seconds=0.0, workers=1, engine="loop"
        ),  # a busy machine could measure otherwise in one of the two runs that are compared bit by bit
    )
