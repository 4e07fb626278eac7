"""A mechanism that leaks more than it claims is found by an attack as it is by an audit; the correct one is not.

The leaks are those of tests/audits/test_mutations.py. The attack knows nothing of the audit's coins: it scores records,
and its advantage is held against what the run's own statement allows, with a false-alarm rate of 1e-6 (over noise keys
and coins, which are fixed).
"""

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.update_attacks import GradientAlignment, GradientSpread
from attacks.metrics.distinguishing import advantage, advantage_ceiling
from audits.canaries.canaries import plant, rare_token_canaries, rare_token_task
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_

RECORDS, DELTA, SURE = 1500, 0.3, 1 - 1e-6
DOORS_NOISE = "privfl.privacy.door.keeper.add_gaussian_rows_"


def exceeded(attack, noise=1.0, rate=1.0, rounds=1):
    """Whether the attack's advantage is certainly above what the statement of the run allows."""
    task = rare_token_task(RECORDS)
    records = rare_token_canaries(task, RECORDS)
    inside = records.coins(5)
    run = pf.simulate(
        plant(task, records, inside),
        pf.FedAvg(weighting="uniform"),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.01, batch_size=1000, steps=1),
        privacy=pf.Privacy(
            training=pf.DPSGD(noise_multiplier=noise, max_grad_norm=0.2, sample_rate=rate),
            noise_key=11,
            target_delta=DELTA,
        ),
        record=["server"],
        execution=pf.Execution(engine="loop", workers=1),
        evaluate_every=1000,
    )
    scores = attack.guess(run.transcript, Auxiliary(candidates=Records(records.inputs, records.targets))).scores
    found = advantage(scores[inside], scores[~inside], confidence=SURE)
    epsilon = run.statement.cell("sample", "server").epsilon
    assert 0 < epsilon < 1
    return found.low > advantage_ceiling(epsilon, DELTA)


def test_half_the_noise(monkeypatch):
    assert not exceeded(GradientAlignment())
    monkeypatch.setattr(DOORS_NOISE, lambda streams, rows, sds: add_gaussian_rows_(streams, rows, [sds[0] / 2]))
    assert exceeded(GradientAlignment())


def test_no_clipping(monkeypatch):
    right = PerSampleGradients.clipped_sum

    def bare(self, loss, inputs, targets, bound, *rest):
        return right(self, loss, inputs, targets, bound if len(inputs) < 10 else float("inf"), *rest)

    monkeypatch.setattr(PerSampleGradients, "clipped_sum", bare)
    assert exceeded(GradientAlignment())


def test_noise_that_is_used_again_in_every_round(monkeypatch):
    setting = {"noise": 1.0, "rate": 0.5, "rounds": 4}
    assert not exceeded(GradientSpread(), **setting)
    monkeypatch.setattr(DOORS_NOISE, lambda _, rows, sds: add_gaussian_rows_([NoiseStream(bytes(32))], rows, sds))
    assert exceeded(GradientSpread(), **setting)
    assert not exceeded(GradientAlignment(), **setting), "what adds up the rounds adds up their common noise"
