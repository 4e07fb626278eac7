"""From what the server of a run saw: every client's labels where nothing protects them, the cohort's under a sum."""

import numpy as np
import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.labels.inference import LLG, DisclosedCounts, LabelCounts, LabelGuess
from privfl.errors import ConfigError

TASK = pf.load("digits", partition=pf.Dirichlet(clients=8, alpha=0.3), model="two-nn")
ONE_STEP = pf.LocalTraining(learning_rate=0.1, batch_size=10**6, steps=1)


def truth():
    rows = [torch.bincount(TASK.targets[TASK.clients[client]], minlength=10) for client in range(8)]
    return torch.stack(rows)


AUXILIARY = Auxiliary(public=Records(TASK.test_inputs, TASK.test_targets), truth={"counts": truth()})


def transcript(algorithm=None, training=ONE_STEP, **more):
    run = pf.simulate(
        TASK,
        algorithm or pf.FedAvg(),
        rounds=1,
        training=training,
        record=True,
        evaluate_every=5,
        execution=pf.Execution(workers=1),
        **more,
    )
    return run.transcript


@pytest.fixture(scope="module")
def one_step():
    return transcript()


@pytest.mark.parametrize("method", ["bias", "regression"])
def test_one_full_batch_step_of_an_untrained_model_gives_every_count_away(one_step, method):
    """Batches of 60 to 400 examples: all counts of all clients, to the last example."""
    result = LabelCounts(method=method).run(one_step, AUXILIARY)
    assert result.metrics["exact_match"].value == 1.0
    assert result.metrics["multiset_accuracy"].value > 0.995
    assert result.advantage["multiset_accuracy"].value > 0.2


def test_llg_plus_finds_most_labels(one_step):
    result = LLG().run(one_step, AUXILIARY)
    assert result.metrics["multiset_accuracy"].value > 0.95
    assert result.nulls["public labels"]["multiset_accuracy"].value < 0.7


@pytest.mark.parametrize("dummy", ["zeros", "ones", "random"])
def test_llg_star_takes_any_dummies(one_step, dummy):
    result = LLG(variant="dummy", dummy=dummy, repeats=1).run(one_step, AUXILIARY)
    assert result.advantage["multiset_accuracy"].value > 0.15


def test_present_classes_are_recalled_and_ties_count_in_part():
    """Two of five classes are held: equal beliefs find 2/5 of them, and one that is sure of one class 1/2 + 1/8."""
    held = torch.tensor([[3, 1, 0, 0, 0]])
    beliefs = {"equal": torch.full((5,), 0.2), "half": torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1])}
    beliefs = {name: belief.double() for name, belief in beliefs.items()}
    guess = LabelGuess({0: held[0].double() / 4}, {}, beliefs)
    result = LabelCounts().judge(guess, Auxiliary(truth={"counts": held}), 0.0)
    assert result.metrics["present_recall"].value == 1.0
    assert result.nulls["equal"]["present_recall"].value == pytest.approx(0.4)
    assert result.nulls["half"]["present_recall"].value == pytest.approx(0.625)


@pytest.mark.parametrize("method", ["bias", "regression"])
def test_local_epochs_with_momentum_do_not_hide_the_labels(method):
    training = pf.LocalTraining(learning_rate=0.005, batch_size=32, epochs=1, momentum=0.5)
    result = LabelCounts(method=method).run(transcript(training=training), AUXILIARY)
    assert result.metrics["multiset_accuracy"].value > 0.9


def test_fedsampling_sends_sums_that_show_labels_too():
    size = pf.LaplaceSize(epsilon=10.0, bound=500)
    seen = transcript(
        pf.FedSampling(samples_per_round=600), privacy=pf.Privacy(size=size, max_size_error=100, noise_key=1)
    )
    for method in ("bias", "regression"):
        assert LabelCounts(method=method).run(seen, AUXILIARY).metrics["multiset_accuracy"].value > 0.9


def test_uniform_weights_send_no_size_and_the_shares_are_found_all_the_same():
    seen = transcript(pf.FedAvg(weighting="uniform"))
    result = LabelCounts().run(seen, AUXILIARY)
    assert "exact_match" not in result.metrics
    assert result.metrics["multiset_accuracy"].value > 0.99


def test_a_secure_sum_leaves_the_labels_of_the_cohort_only():
    """Everybody gets the belief of the sum; it is right about the cohort's labels, and hardly better than the null."""
    chain = (pf.Clip(100.0), pf.SecureSum(mode="ideal"))
    seen = transcript(pf.FedAvg(weighting="uniform"), privacy=pf.Privacy(update=chain))
    assert seen[0].training.uploads is None
    guess = LabelCounts().guess(seen, AUXILIARY.for_attacker())
    beliefs = torch.stack(list(guess.shares.values()))
    assert torch.equal(beliefs, beliefs[:1].expand(8, -1))
    shares = truth().double()
    expected = (shares / shares.sum(1, keepdim=True)).mean(0)
    assert float((beliefs[0] - expected).abs().max()) < 0.02
    assert LabelCounts().run(seen, AUXILIARY).advantage["multiset_accuracy"].value < 0.05


def test_rebafl_discloses_the_counts_and_hides_them_from_the_gradient():
    seen = transcript(pf.ReBaFL(n_min=1), pf.LocalTraining(batch_size=50))
    result = DisclosedCounts().run(seen, AUXILIARY)
    assert result.metrics["multiset_accuracy"].value == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="shifts every client's loss"):
        LabelCounts().run(seen, AUXILIARY)


def test_the_minimum_count_withholds_small_classes(one_step):
    sent = DisclosedCounts().guess(transcript(pf.ReBaFL(n_min=20), pf.LocalTraining(batch_size=50)), AUXILIARY)
    held = truth()
    for client, shares in sent.shares.items():
        assert bool((shares[held[client] < 20] == 0).all())
    with pytest.raises(ConfigError, match="no label counts"):
        DisclosedCounts().run(one_step, AUXILIARY)


def test_the_attack_never_sees_the_answers(one_step):
    lying = Auxiliary(public=AUXILIARY.public, truth={"counts": torch.roll(truth(), 1, 1)})
    honest, other = (LabelCounts().run(one_step, one) for one in (AUXILIARY, lying))
    assert other.metrics["multiset_accuracy"].value < honest.metrics["multiset_accuracy"].value
    guesses = [LabelCounts().guess(one_step, one.for_attacker()).shares for one in (AUXILIARY, lying)]
    assert all(torch.equal(guesses[0][client], guesses[1][client]) for client in guesses[0])


def test_the_result_says_everything_in_json(one_step):
    told = LabelCounts(method="bias").run(one_step, AUXILIARY).to_json()
    assert told["settings"] == {"rounds": 1, "method": "bias"}
    assert set(told["nulls"]) == {"public labels", "equal shares"}
    assert np.isfinite(told["advantage"]["exact_match"]["value"])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: LabelCounts(method="signs"), "method"),
        (lambda: LabelCounts(rounds=0), "rounds"),
        (lambda: LLG(variant="star"), "variant"),
        (lambda: LLG(dummy="noise"), "dummy"),
        (lambda: LLG(labels=0), "labels"),
        (lambda: LLG(repeats=0), "repeats"),
    ],
)
def test_settings_out_of_range_are_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()


def test_what_the_transcript_lacks_is_named(one_step):
    with pytest.raises(ConfigError, match="public data"):
        LabelCounts().run(one_step, Auxiliary(truth=AUXILIARY.truth))
    with pytest.raises(ConfigError, match="public sees no messages"):
        LabelCounts().run(one_step.before_public(), AUXILIARY)
    with pytest.raises(ConfigError, match="of 3 clients"):
        LabelCounts().run(one_step, Auxiliary(public=AUXILIARY.public, truth={"counts": truth()[:3]}))
    few = Auxiliary(public=AUXILIARY.public[AUXILIARY.public.targets > 0], truth=AUXILIARY.truth)
    with pytest.raises(ConfigError, match="class 0"):
        LLG().run(one_step, few)
    seen = transcript(pf.FedAvg(weighting="uniform"), pf.LocalTraining(batch_size=50))
    with pytest.raises(ConfigError, match="number of local steps"):
        LabelCounts(method="bias").run(seen, AUXILIARY)
