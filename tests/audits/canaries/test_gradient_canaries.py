"""White-box audits of real runs: statistics of the law that is claimed, bounds near the claim and never above it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

import privfl as pf
from audits.bounds.guess_budget import gaussian_strength, planned_guesses
from audits.canaries.alignment import sample_alignment
from audits.canaries.canaries import noise_canaries, plant, rare_token_canaries, rare_token_task
from audits.canaries.gradient_canaries import audit_one_run, audit_two_worlds, gaussian_family, summary
from audits.canaries.views import seen_by
from privfl.errors import ConfigError
from privfl.simulation.result import Run

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "audit_targets.json").read_text())
TARGETS = ORACLES["one_run_white_box_targets"]["rows"]
SURE = 1 - 1e-6  # the false-alarm rate of every verdict here


def trainer(noise, rate=1.0, rounds=8, *, record=("server",), key=0, bound=0.5, **training):
    settings = {"learning_rate": 0.01, "batch_size": 1000, "steps": 1, **training}

    def train(task, **more):
        return pf.simulate(
            task,
            more.pop("algorithm", pf.FedAvg(weighting="uniform")),
            rounds=rounds,
            training=pf.LocalTraining(**settings),
            privacy=pf.Privacy(
                training=pf.DPSGD(noise_multiplier=noise, max_grad_norm=bound, sample_rate=rate), noise_key=key
            ),
            record=list(record),
            execution=pf.Execution(engine="loop", workers=1),
            evaluate_every=1000,
            **more,
        )

    return train


@pytest.fixture(scope="module")
def tokens():
    task = rare_token_task(1000)
    return task, rare_token_canaries(task, 1000)


@pytest.mark.parametrize("row", [row for row in TARGETS if row["m"] == 1000], ids=lambda row: f"T={row['T']}")
def test_one_run_certifies_what_ideal_canaries_do(row, tokens, common_noise):
    task, canaries = tokens
    train = trainer(row["sigma"], row["q"], row["T"])
    # each of the two bounds has the published ones' confidence of 95 %
    result = audit_one_run(task, train, canaries, bounds=["one-run", "trials"], confidence=0.9)
    bare, trials = result.bounds
    assert result.claim == pytest.approx(row["upper_pld"], rel=1e-3)
    assert 0.9 * row["onerun_split"] <= bare.epsilon <= result.claim
    assert 0.9 * row["gdp"] <= trials.epsilon <= result.claim
    assert bare.assumes == ""
    assert "Gaussian" in trials.assumes
    assert not result.refuted


def test_two_worlds_come_within_a_tenth_of_the_claim():
    task = rare_token_task(8000)
    train, canaries = trainer(1.0, rounds=1), rare_token_canaries(task, 8000)
    result = audit_two_worlds(task, train, canaries)
    assert result.claim == pytest.approx(4.3772, abs=1e-3)
    assert 1.0 <= result.looseness < 1.1


@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_single_canary_serves_if_there_are_rounds_enough(key):
    """Rounds lie five deviations apart, so that fewer than ten of fifty are mistaken, except with probability 1e-12."""
    task = rare_token_task(1)
    canaries = rare_token_canaries(task, 1)
    train = trainer(0.2, rounds=100, key=key)
    result = audit_two_worlds(task, train, canaries, per_round=True, confidence=SURE)
    assert 10 < result.bound.epsilon <= result.claim
    assert result.bound.details["members"] == 50


def test_statistics_are_those_of_gradients_formed_one_by_one():
    arrays = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    task = pf.Task.from_arrays(arrays, np.arange(60) % 3, partition=pf.IID(clients=3), model="two-nn")
    canaries = noise_canaries(task, 7, client=None)
    run = trainer(0.5, 0.5, rounds=2, record=("server", "public"), bound=1.0, batch_size=10)(
        plant(task, canaries, canaries.coins(0))
    )
    found = sample_alignment(seen_by(run, "server"), canaries, task.loss)
    network = run.transcript.network()
    seen = run.transcript[1]

    def loss(flat, row, target):
        parameters, begin = {}, 0
        for name, value in network.named_parameters():
            parameters[name] = flat[begin : begin + value.numel()].view_as(value)
            begin += value.numel()
        return torch.nn.functional.cross_entropy(functional_call(network, parameters, (row[None],)), target[None])

    gradients = vmap(grad(loss), (None, 0, 0))(seen.broadcast["parameters"], canaries.inputs, canaries.targets)
    norms = gradients.norm(dim=1)
    clipped = gradients * (1 / norms).clamp(max=1)[:, None]
    sums = torch.stack([seen.uploads[int(owner)]["update"] for owner in canaries.owners]) * (-10 / 0.01)
    assert found.statistics[1] == pytest.approx((clipped * sums).sum(1).numpy(), rel=1e-3, abs=1e-4)
    assert found.lengths[1] == pytest.approx(clipped.square().sum(1).numpy(), rel=1e-4)
    public = sample_alignment(seen_by(run, "public"), canaries, task.loss)
    moved = (seen.broadcast["parameters"] - seen.released) * (10 / 0.01)
    assert public.statistics[1] == pytest.approx((clipped @ moved).numpy(), rel=1e-3, abs=1e-4)
    assert public.statistics[0].any()  # the start is known, because the server's view was recorded too


def test_rare_tokens_see_the_claimed_noise_and_nothing_else(tokens):
    task, canaries = tokens
    included = canaries.coins(3)
    run = trainer(2.0, rounds=8)(plant(task, canaries, included))
    found = sample_alignment(seen_by(run, "server"), canaries, task.loss)
    inside, outside = found.statistics[:, included], found.statistics[:, ~included]
    # 4,000 numbers a side: five standard errors of mean and deviation, false-alarm rate 4 · 3e-7
    assert inside.mean() == pytest.approx(1, abs=5 * 2 / 63)
    assert outside.mean() == pytest.approx(0, abs=5 * 2 / 63)
    assert outside.std() == pytest.approx(2, rel=5 / math.sqrt(8000))
    assert inside.std() == pytest.approx(2, rel=5 / math.sqrt(8000))
    assert found.lengths == pytest.approx(np.ones_like(found.lengths), rel=1e-3)


def test_ordinary_models_and_every_observer_can_be_audited():
    arrays = np.random.default_rng(0).normal(size=(20, 100)).astype(np.float32)
    task = pf.Task.from_arrays(arrays, (arrays[:, 0] > 0).astype(int), partition=pf.IID(clients=2), model="logistic")
    canaries = noise_canaries(task, 32, client=0)
    train = trainer(0.2, rounds=6, record=("server", "public"), bound=1.0, batch_size=50)
    for observer in ("server", "public"):
        result = audit_one_run(task, train, canaries, observer=observer, seed=1)
        assert [bound.assumes for bound in result.bounds] == ["", ""]
        assert result.observer == observer
        assert not result.refuted
        assert result.bound.epsilon > 0.3
    fedsampling = lambda task: train(task, algorithm=pf.FedSampling(samples_per_round=100))  # noqa: E731
    assert not audit_one_run(task, fedsampling, canaries, observer="public").refuted


def test_bounds_grow_with_the_canaries_strength(tokens):
    task, canaries = tokens
    found = [
        audit_one_run(task, trainer(noise, rounds=2), canaries, bounds=["trials"], confidence=SURE).bound.epsilon
        for noise in (4.0, 2.0, 1.0, 0.5)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_clients_that_sit_out_leave_only_bounds_without_a_family(tokens):
    task = rare_token_task(60, clients=3)
    canaries = rare_token_canaries(task, 60)
    train = trainer(1.0, rounds=4)
    result = audit_one_run(task, lambda one: train(one, cohort=pf.FixedCohort(2)), canaries)
    assert [bound.assumes for bound in result.bounds] == ["", ""]


def family_of(task, canaries, train, observer="server", **more):
    run = train(plant(task, canaries, canaries.coins(0)), **more)
    view = seen_by(run, observer)
    return gaussian_family(view, canaries, run.statement.cell("sample", observer)), run


def test_a_family_counts_the_steps_that_the_statement_charges():
    """Two gradients for one step of training would pass for one with less noise: σ = 1 for 1/√2."""
    task = rare_token_task(12)
    canaries, train = rare_token_canaries(task, 12), trainer(1.0, rounds=2)
    found, _ = family_of(task, canaries, train)
    assert (found.steps, found.observed_steps) == (2, 2)
    twice, run = family_of(task, canaries, train, algorithm=pf.PerFedAvg("uniform"))
    assert sum(release.count for release in run.statement.cell("sample", "server").releases) == 4
    assert twice is None
    once = train(plant(task, canaries, canaries.coins(0)))
    cell = once.statement.cell("sample", "server")
    charged_twice = replace(cell, releases=tuple(replace(one, count=2 * one.count) for one in cell.releases))
    assert gaussian_family(seen_by(once, "server"), canaries, cell) == found
    assert gaussian_family(seen_by(once, "server"), canaries, charged_twice) is None


def test_what_ties_canaries_to_each_other_leaves_no_family():
    """One norm scales all coordinates of an update, so canaries that share it are no independent trials."""
    task = rare_token_task(12, clients=2)
    canaries, train = rare_token_canaries(task, 12), trainer(1.0, rounds=1)
    assert family_of(task, canaries, train, algorithm=pf.FedMGDA())[0] is None
    clipped = lambda task, **more: pf.simulate(  # noqa: E731
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(learning_rate=0.01, batch_size=1000, steps=1),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=1.0), update=[pf.Clip(0.1)]),
        record=["server"],
    )
    assert family_of(task, canaries, clipped)[0] is None


def test_the_public_sees_every_round_even_where_it_does_not_see_the_first_change():
    """The first round's change shows in the parameters at which later gradients are formed."""
    task = rare_token_task(12)
    canaries, train = rare_token_canaries(task, 12), trainer(1.0, rounds=3, record=("public",))
    found, _ = family_of(task, canaries, train, observer="public")
    assert found.observed_steps == found.steps == 3


@pytest.mark.parametrize(
    "change", [{"algorithm": pf.FedAdam()}, {"algorithm": pf.FedDyn()}, {"weight_decay": 0.1}], ids=str
)
def test_rounds_that_carry_noise_are_no_trials(change):
    """With momentum β the score of a round is an average of all before: √((1 + β)/(1 − β)) times as telling."""
    task = rare_token_task(1)
    algorithm = {"algorithm": change["algorithm"]} if "algorithm" in change else {}
    plain = trainer(1.0, rounds=2, **({} if algorithm else change))
    train = lambda task: plain(task, **algorithm)  # noqa: E731
    with pytest.raises(ConfigError, match="carries what earlier rounds left"):
        audit_two_worlds(task, train, rare_token_canaries(task, 1), per_round=True)


def test_rounds_of_a_canary_that_is_not_clipped_are_no_trials():
    """The length of its gradient follows the weights, which earlier noise has moved."""
    task = rare_token_task(1, scale=0.1)
    with pytest.raises(ConfigError, match="was not clipped in some rounds"):
        audit_two_worlds(task, trainer(1.0, rounds=4), rare_token_canaries(task, 1), per_round=True)


def test_a_run_without_dp_sgd_is_refused_in_a_sentence(tokens):
    task, canaries = tokens
    with pytest.raises(ConfigError, match="the run had no DP-SGD"):
        audit_one_run(task, lambda planted: pf.simulate(planted, pf.FedAvg(), rounds=1, record=["server"]), canaries)


def test_the_strength_of_a_claim_inverts_the_gaussian_profile():
    for mu, epsilon in [(0.5, 1.9930914), (1.0, 4.3771781), (2.0, 9.9972561), (3.0, 16.675494)]:
        assert gaussian_strength(epsilon, 1e-5) == pytest.approx(mu, rel=1e-6)


def test_guesses_are_planned_by_the_claim_alone():
    assert planned_guesses(1000, math.inf, delta=1e-5, confidence=0.95) == (500, 500)
    certain, doubtful = (planned_guesses(1000, claim, delta=1e-5, confidence=0.95)[0] for claim in (20.0, 1.0))
    assert certain > 200
    assert doubtful >= 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bounds": []}, "bounds is empty"),
        ({"bounds": ["two-run"]}, "'two-run'"),
        ({"bounds": "trials"}, r"bounds is 'trials'; give a list, such as \['trials'\]"),
        ({"scores": ["mean"]}, "scores holds 'mean'"),
        ({"scores": "spread"}, r"scores is 'spread'; give a list, such as \['spread'\]"),
        ({"confidence": "0.9"}, "confidence is '0.9'; give a number"),
        ({"confidence": 0}, "the confidence is 0"),
        ({"confidence": 1.0}, "the confidence is 1.0"),
        ({"confidence": 95}, "the confidence is 95; give a number in"),
        ({"confidence": 1 - 2**-53}, "too near to 1 to be shared among 3 bounds"),
        ({"seed": None}, "seed is None; give a whole number"),
        ({"observer": "public", "scores": ["likelihood"]}, "distribution of a round is not known"),
    ],
)
def test_impossible_settings_are_one_sentence_before_anything_is_trained(change, sentence):
    task = rare_token_task(20)
    with pytest.raises(ConfigError, match=sentence):
        audit_one_run(task, untrained, rare_token_canaries(task, 20), **change)


def untrained(*given):
    pytest.fail("the audit trained before it looked at its arguments")


@pytest.mark.parametrize("change", [{"confidence": 95}, {"confidence": "0.9"}, {"observer": "client"}], ids=str)
def test_two_worlds_look_at_their_arguments_first(change):
    task = rare_token_task(20)
    with pytest.raises(ConfigError, match=f"{next(iter(change))} is"):
        audit_two_worlds(task, untrained, rare_token_canaries(task, 20), **change)


@pytest.mark.parametrize("count", [2, 3, 5, 25])
def test_any_number_of_canaries_is_guessed_about(count):
    task = rare_token_task(count)
    result = audit_one_run(task, trainer(1.0, rounds=1), rare_token_canaries(task, count))
    told = result.bounds[0].details
    assert (told["guessed_in"], told["guessed_out"]) == (count - count // 2, count // 2)


def test_a_lonely_canary_of_its_world_is_no_trial_to_choose_a_threshold_on():
    task = rare_token_task(2)
    canaries, train = rare_token_canaries(task, 2), trainer(1.0, rounds=1, record=("public",))
    assert len(audit_one_run(task, train, canaries, observer="public").bounds) == 2
    with pytest.raises(ConfigError, match="two of them in and two out"):
        audit_one_run(task, untrained, canaries, observer="public", bounds=["trials"])


class Shared(torch.nn.Module):
    """Tokens of their own, and one layer for all of them."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(61, 4), torch.nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.tokens(tokens).mean(1))


def test_tokens_of_a_model_that_shares_weights_are_no_trials():
    """Taken for trials, they refuted a true claim of 0.9 by a certified 8, twenty times in twenty."""
    rows = np.arange(51, 61)[:, None]
    task = pf.Task.from_arrays(
        rows, np.arange(10) % 2, clients=np.zeros(10, dtype=int), test=(rows, np.arange(10) % 2), vocabulary=61,
        model=Shared,
    )  # fmt: skip
    canaries = rare_token_canaries(task, 50)
    assert not canaries.apart
    with pytest.raises(ConfigError, match="the model Shared may share weights between tokens"):
        audit_two_worlds(task, untrained, canaries)
    for audit in (audit_one_run, audit_two_worlds):
        with pytest.raises(ConfigError, match="are said to be apart, and the model Shared may share"):
            audit(task, untrained, replace(canaries, apart=True))
    train = trainer(4.0, rounds=1, bound=0.3)
    assert [bound.assumes for bound in audit_one_run(task, train, canaries).bounds] == ["", ""]


def test_a_function_that_trains_another_model_leaves_no_trials():
    task, shared = rare_token_task(60), lambda given: Shared()
    canaries, train = rare_token_canaries(task, 60), trainer(1.0, rounds=1)
    swapped = lambda given: train(replace(given, model=shared))  # noqa: E731
    assert [bound.assumes for bound in audit_one_run(task, swapped, canaries).bounds] == ["", ""]
    with pytest.raises(ConfigError, match="train used a model in which canaries interfere"):
        audit_two_worlds(task, swapped, canaries)


def test_what_cannot_be_audited_says_why(tokens):
    task = tokens[0]
    overlap = noise_canaries(task, 8)
    with pytest.raises(ConfigError, match="needs canaries that do not interfere"):
        audit_two_worlds(task, trainer(1.0), overlap)
    with pytest.raises(ConfigError, match="'trials' needs canaries that do not interfere"):
        audit_one_run(task, trainer(1.0, rounds=1), overlap, bounds=["trials"])
    with pytest.raises(ConfigError, match="are in one group"):
        audit_one_run(task, trainer(1.0), noise_canaries(task, 1))
    with pytest.raises(ConfigError, match="recorded nothing"):
        audit_one_run(task, trainer(1.0, rounds=1, record=()), overlap)
    with pytest.raises(ConfigError, match="what the public saw"):
        audit_one_run(task, trainer(1.0, rounds=1, record=("public",)), overlap)
    with pytest.raises(ConfigError, match="need a token each"):
        rare_token_canaries(task, 1001)
    with pytest.raises(ConfigError, match="belongs to client 5"):
        plant(task, noise_canaries(task, 2, client=5), np.ones(2, dtype=bool))
    bare = pf.simulate(task, pf.FedAvg(), rounds=1, record=["server"])
    with pytest.raises(ConfigError, match="no DP-SGD"):
        sample_alignment(seen_by(bare, "server"), overlap, task.loss)


def test_the_summary_of_rounds_is_what_it_says():
    from audits.canaries.alignment import Alignment
    from audits.canaries.claimed_statistic import ClaimedStatistic

    seen = Alignment(np.array([[1.0, 0.0], [3.0, -2.0]]), np.ones((2, 2)))
    assert summary(seen, "sum").tolist() == [4.0, -2.0]
    assert summary(seen, "largest").tolist() == [3.0, 0.0]
    assert summary(seen, "spread").tolist() == [2.0, 2.0]
    ratio = summary(seen, "likelihood", ClaimedStatistic(0.25, 2.0))
    expected = [
        sum(math.log(0.75 + 0.25 * math.exp((2 * s - 1) / 8)) for s in column) for column in ([1.0, 3.0], [0.0, -2.0])
    ]
    assert ratio == pytest.approx(expected)


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (lambda task: None, r"train returned None; let it return the run, as lambda task: pf.simulate\(task, …"),
        (Run(torch.zeros(1), [], None, {}), r"train is Run\(…\); give a function"),
        (
            lambda task: trainer(1.0, rounds=1)(rare_token_task(40)),
            "did not train on the task it was given, so no canary",
        ),
        (
            lambda task: trainer(1.0, rounds=1)(replace(task, clients=rare_token_task(40).clients)),
            "did not train on the task it was given, so no canary",
        ),
    ],
)
def test_a_function_that_plants_no_canary_is_refused(train, sentence):
    task = rare_token_task(40)
    for audit in (audit_one_run, audit_two_worlds):
        with pytest.raises(ConfigError, match=sentence):
            audit(task, train, rare_token_canaries(task, 40))


def test_a_function_may_change_the_task_that_it_is_given():
    task = rare_token_task(40)
    own = audit_one_run(
        task, lambda given: trainer(1.0, rounds=1)(replace(given, name="own")), rare_token_canaries(task, 40)
    )
    assert own.bounds == audit_one_run(task, trainer(1.0, rounds=1), rare_token_canaries(task, 40)).bounds
