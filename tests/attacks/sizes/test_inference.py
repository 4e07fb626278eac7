"""Sizes from a FedSampling transcript: from its updates, from fresh answers, and what a secure sum leaves of that."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.sizes.inference import SizeFromResponses, SizeFromUpdates
from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource

DATA = pf.load_dataset("digits")
SIZES = [10, 15, 20, 30, 40, 60, 80, 120, 160, 240]
SIZE = pf.RandomizedResponse(epsilon=5.0, bound=300)


def task():
    """Ten clients of 10 to 240 digits; the last third of the digits is public."""
    inputs, targets = torch.as_tensor(DATA.inputs).numpy(), torch.as_tensor(DATA.targets).numpy()
    owners = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES)).numpy()
    held = sum(SIZES)
    public = (inputs[held + 100 :], targets[held + 100 :])
    return pf.Task.from_arrays(inputs[:held], targets[:held], clients=owners, test=public, model="two-nn")


TASK = task()
AUXILIARY = Auxiliary(public=Records(TASK.test_inputs, TASK.test_targets), truth={"sizes": torch.tensor(SIZES)})


def transcript(size=SIZE, rounds=20, update=(), **more):
    run = pf.simulate(
        TASK,
        pf.FedSampling(samples_per_round=100),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.02),
        privacy=pf.Privacy(size=size, update=update, max_size_error=1e6, noise_key=5),
        record=True,
        evaluate_every=50,
        execution=pf.Execution(workers=1),
        **more,
    )
    return run.transcript


@pytest.fixture(scope="module")
def memoised():
    """Of the key's own noise, by which the bounds below were found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseSource, "for_run", lambda source, fingerprint: source)
        return transcript()


@pytest.mark.parametrize("method", ["regression", "absent-class"])
def test_updates_give_the_sizes_away_although_answers_are_randomised_and_memoised(memoised, method):
    result = SizeFromUpdates(method=method, rounds=20).run(memoised, AUXILIARY)
    least = {"regression": 0.2, "absent-class": 0.6}[method]
    assert result.metrics["relative_error"].value < least
    assert result.advantage["relative_error"].value > 0
    if method == "regression":
        assert result.metrics["auc_twice"].value > 0.95


def test_a_secure_sum_of_updates_hides_them():
    """Every client is believed to hold the mean, as without any message."""
    seen = transcript(update=(pf.Clip(50.0), pf.SecureSum(mode="ideal")), rounds=3)
    result = SizeFromUpdates(rounds=3).run(seen, AUXILIARY)
    assert result.metrics["auc_twice"].value == 0.5
    assert result.metrics["relative_error"].value > 0.5


def test_fifty_fresh_answers_give_every_size_and_one_gives_few():
    """At ε = 5 and D = 300 the truth has a third of the votes, so that 50 of them cannot be mistaken."""
    fresh = transcript(pf.RandomizedResponse(epsilon=5.0, bound=300, refresh="every_round"), rounds=50)
    result = SizeFromResponses().run(fresh, AUXILIARY)
    assert result.metrics["exact_match"].value == 1.0
    assert SizeFromResponses(rounds=1).run(fresh, AUXILIARY).metrics["exact_match"].value < 0.9


def test_memoised_answers_stay_one_answer(memoised):
    few, many = (SizeFromResponses(rounds=rounds).run(memoised, AUXILIARY) for rounds in (1, 20))
    told = [{name: found.to_json() for name, found in result.metrics.items()} for result in (few, many)]
    assert told[0] == told[1]  # a NaN equals itself as JSON's null, which Python 3.13 says of no dataclass
    assert few.metrics["exact_match"].value < 0.9


def test_auc_of_twice_the_size_counts_pairs_by_brute_force(memoised):
    guess = SizeFromUpdates().guess(memoised, AUXILIARY.for_attacker())
    found, wanted = 0.0, 0
    for a, large in enumerate(SIZES):
        for b, small in enumerate(SIZES):
            if large >= 2 * small:
                wanted += 1
                found += 1.0 if guess.sizes[a] > guess.sizes[b] else 0.5 * (guess.sizes[a] == guess.sizes[b])
    result = SizeFromUpdates().run(memoised, AUXILIARY)
    assert result.metrics["auc_twice"].value == pytest.approx(found / wanted)


def test_what_cannot_be_attacked_is_refused(memoised):
    other = pf.simulate(TASK, pf.FedAvg(), rounds=1, record=True, execution=pf.Execution(workers=1)).transcript
    with pytest.raises(ConfigError, match="fedsampling"):
        SizeFromUpdates().run(other, AUXILIARY)
    with pytest.raises(ConfigError, match="not randomised"):
        SizeFromResponses().run(other, AUXILIARY)
    with pytest.raises(ConfigError, match="method"):
        SizeFromUpdates(method="norm")
    with pytest.raises(ConfigError, match="rounds"):
        SizeFromResponses(rounds=0)
    with pytest.raises(ConfigError, match="sizes of 2 clients"):
        SizeFromUpdates().run(memoised, Auxiliary(public=AUXILIARY.public, truth={"sizes": torch.tensor([1, 2])}))
