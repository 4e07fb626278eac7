"""Tasks of every kind train and are judged: on small real data, in both engines, with and without privacy."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

import privfl as pf
from attacks.membership.loss_threshold import LossThreshold
from audits.canaries.canaries import noise_canaries, plant
from privfl.algorithms import ALGORITHMS
from privfl.errors import ConfigError
from privfl.federation.kinds import KINDS, random_targets
from privfl.metrics.next_token import next_token, token_sums
from privfl.simulation.evaluation import evaluate, storable

ENGINES = ["loop", "vectorised"]
TEXT = " ".join(Path(__file__).parents[2].joinpath("LICENSE").read_text(encoding="utf-8").split()).lower()


@cache
def task(kind, metrics=()):
    """Diabetes' progression, three properties of digits, or the characters of a licence; a linear or a tiny model."""
    dealt = {"kind": kind, "partition": pf.IID(clients=4), "metrics": metrics}
    if kind == "regression":
        x, y = load_diabetes(return_X_y=True)
        return pf.Task.from_arrays(x / 0.0476, (y - 150) / 75, **dealt, model="logistic")
    if kind == "multi-label":
        images, digit = load_digits(return_X_y=True)
        labels = np.stack([digit % 2 == 0, digit > 4, digit % 3 == 0], axis=1)
        return pf.Task.from_arrays(images[:400] / 16, labels[:400], **dealt)
    characters = np.frombuffer(TEXT.encode("ascii"), np.uint8).astype(np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(characters, 11)[:2000:10]
    options = {"model": "next-token-lstm", "model_options": {"embedding_dim": 8, "hidden": 16}}
    return pf.Task.from_arrays(rows, None, vocabulary=128, padding=ord(" "), **dealt, **options)


TRAINING = {
    "regression": pf.LocalTraining(learning_rate=0.05, batch_size=16),
    "multi-label": pf.LocalTraining(learning_rate=1.0, batch_size=16),
    "next-token": pf.LocalTraining(learning_rate=2.0, batch_size=16),
}
every_kind = pytest.mark.parametrize("kind", TRAINING)


def trained(kind, algorithm=None, rounds=2, engine="loop", **options):
    execution = pf.Execution(engine=engine, device="cpu", workers=1)
    options = {"training": TRAINING[kind], "execution": execution, **options}
    return pf.simulate(options.pop("task", task(kind)), algorithm or pf.FedAvg(), rounds=rounds, **options)


@every_kind
def test_models_learn_and_the_headline_says_so(kind):
    run, headline = trained(kind, rounds=4), task(kind).headline
    first, last = run.metrics[0][headline.test], run.metrics[-1][headline.test]
    assert (last > first) is headline.higher_is_better
    assert run.summary["headline"] == {"name": headline.test, "higher_is_better": headline.higher_is_better}
    better = {"regression": 1.0, "multi-label": 0.6, "next-token": 64.0}[kind]
    assert (last > better) is headline.higher_is_better


@every_kind
def test_the_test_metrics_are_those_of_the_final_model(kind):
    run, one = trained(kind), task(kind)
    network = one.model(0).eval()
    nn.utils.vector_to_parameters(run.parameters.clone(), network.parameters())
    with torch.no_grad():
        outputs = network(one.test_inputs)
    assert outputs.shape[1:] == one.output_shape
    found = KINDS[kind].measure(outputs, one.test_targets)
    assert {name: run.metrics[-1][name] for name in found} == pytest.approx(found, rel=1e-5)
    if kind == "next-token":
        assert found == next_token(token_sums(outputs, one.test_targets), one.test_targets)


ALGORITHMS_TRIED = [
    pf.FedAvg(),
    pf.FedProx(mu=0.1),
    pf.Scaffold(),
    pf.FedDyn(alpha=0.1),
    pf.Ditto(),
    pf.FedSampling(samples_per_round=60),
    pf.TERM(),
    pf.MOON(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS_TRIED, ids=lambda one: one.name)
@every_kind
def test_both_engines_train_every_kind_alike(kind, algorithm):
    one, two = (trained(kind, algorithm, 1, engine).parameters for engine in ENGINES)
    torch.testing.assert_close(one, two, rtol=1e-3, atol=2e-5)


@every_kind
def test_both_engines_clip_and_add_the_same_noise(kind):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0), noise_key=3)
    runs = [trained(kind, pf.FedAvg(weighting="uniform"), 1, engine, privacy=privacy) for engine in ENGINES]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-3, atol=2e-5)
    assert runs[0].statement.finite() == runs[1].statement.finite()
    assert 0 < runs[0].statement.finite()["sample/server"] < math.inf


@every_kind
def test_noise_on_the_sum_and_secure_sums_serve_every_kind(kind):
    central = pf.Privacy(
        training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
        size=pf.LaplaceSize(epsilon=1.0, bound=200, lower=40),
        max_size_error=math.inf,
    )
    assert "sample/public" in trained(kind, pf.FedSampling(60), 1, privacy=central).statement.finite()
    shared = pf.Privacy(update=(pf.Clip(0.5), pf.SkellamNoise(noise_multiplier=1.0), pf.SecureSum()), training=None)
    run = trained(kind, pf.FedAvg(weighting="uniform"), 1, privacy=shared)
    assert "client/server" in run.statement.finite()
    assert np.isfinite(run.metrics[-1]["test_loss"])


def worlds(kind):
    """Two federations that differ in the last row of the first client: long, and with other targets than the rest."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(16, 10, generator=generator)
    if kind == "next-token":
        inputs = torch.randint(128, (16, 10), generator=generator)
    outputs = {"regression": 1, "multi-label": 3, "next-token": 128}[kind]
    targets = random_targets(kind, 16, outputs, (10,), generator)
    if kind == "regression":
        inputs[7], targets[7] = 100.0, -1000.0
    if kind == "next-token":
        targets[:7, 3:], targets[7] = -100, 5
    for keep in (torch.ones(16, dtype=torch.bool), torch.arange(16) != 7):
        given = {"vocabulary": 128} if kind == "next-token" else {}
        yield pf.Task.from_arrays(
            inputs[keep],
            targets[keep],
            kind=kind,
            clients=(torch.arange(16) // 8)[keep],
            test=(inputs[:4], targets[:4]),
            **given,
            model=task(kind).model_name,
            model_options={"embedding_dim": 4, "hidden": 8} if given else {},
        )


@pytest.mark.parametrize("engine", ENGINES)
@every_kind
def test_a_row_moves_what_leaves_by_no_more_than_the_bound(kind, engine):
    """The row's tokens, values and padding are its own: no other row's gradient is divided by them."""
    moved = [
        trained(
            kind,
            pf.FedAvg(weighting="uniform"),
            1,
            engine,
            task=world,
            training=pf.LocalTraining(batch_size=1, steps=1, learning_rate=1.0),
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=0.0, max_grad_norm=1.0, sample_rate=1.0)),
        ).parameters.double()
        for world in worlds(kind)
    ]
    assert 0.1 < 2 * float((moved[0] - moved[1]).norm()) <= 1 + 1e-4


@every_kind
def test_clients_own_tests_are_judged_by_the_headline_metric(kind):
    own = task(kind).with_local_tests(pf.LocalTests(fraction=0.2, validation=0.2))
    line = trained(kind, pf.SuPerFed(mode="mm", start_fraction=0.0), 1, task=own).metrics[-1]
    name, higher = own.headline.name, own.headline.higher_is_better
    assert {f"local_{name}", f"personal_{name}", f"personal_{name}_validated", f"personal_{name}_of_clients"} <= set(
        line
    )
    assert (line["local_worst_tenth"] < line["local_best_tenth"]) is higher
    best = line[f"personal_{name}_best_on_test"]
    assert (best >= line[f"personal_{name}_validated"]) if higher else (best <= line[f"personal_{name}_validated"])


@every_kind
def test_models_of_single_clients_are_averaged(kind):
    line = trained(kind, pf.Local(), 1).metrics[-1]
    assert np.isfinite(line[task(kind).headline.test])


@pytest.mark.parametrize("name", ["fedrs", "fedlc", "rebafl", "bsm-fedavg", "fedevg", "fedcvae", "grp-fed"])
def test_algorithms_that_work_with_classes_refuse_a_task_that_has_none(name):
    with pytest.raises(
        ConfigError, match=f"{name} works with the class of each example, and examples of a task of the kind reg"
    ):
        trained("regression", ALGORITHMS[name](), 1)


def test_a_model_that_gives_something_else_is_refused():
    tokens = np.zeros((8, 5), np.int64)
    with pytest.raises(
        ConfigError, match=r"the model lstm, on inputs of shape \(4,\) and 9 token ids, gives .*\(3, 9\)"
    ):
        pf.Task.from_arrays(tokens, None, kind="next-token", vocabulary=9, model="lstm", partition=pf.IID(clients=2))
    with pytest.raises(ConfigError, match=r"gives torch.float32 of shape \(3, 2\) .* predictions \[B, values\]"):
        pf.Task.from_arrays(
            np.zeros((8, 5)), np.zeros(8), kind="regression", model=lambda: nn.Linear(5, 2), partition=pf.IID(clients=2)
        )


def test_algorithms_are_told_the_loss_of_a_model_that_knows_nothing():
    known = {"regression": 1.0, "multi-label": math.log(2), "next-token": math.log(128)}
    assert {kind: task(kind).context(1, 0).usual_loss for kind in known} == known
    assert pf.load("digits", partition=pf.IID(clients=3)).context(1, 0).usual_loss == math.log(10)


def test_default_models_are_made_for_the_kind():
    x, deal = np.zeros((8, 5), np.float32), {"partition": pf.IID(clients=2)}
    assert pf.Task.from_arrays(x, x[:, 0], kind="regression", **deal).model_name == "two-nn"
    assert pf.Task.from_arrays(x, x[:, :2], kind="multi-label", **deal).model_name == "logistic"
    tokens = x.astype(np.int64)
    assert pf.Task.from_arrays(tokens, None, kind="next-token", vocabulary=9, **deal).model_name == "next-token-lstm"


def test_a_recorded_run_says_what_it_is_and_reports_it(tmp_path):
    run = trained("regression", None, 1, out=tmp_path / "run", record=True)
    facts = pf.Transcript.load(tmp_path / "run", "server", task("regression").model).facts
    assert (facts.kind, facts.classes) == ("regression", 1)
    assert "1 value, who the 4 clients are" in run.statement.public
    pf.write_report(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"reaches a test rmse of {run.summary['test_rmse']:.3f}." in page
    with pytest.raises(
        ConfigError, match=r"loss-threshold works with the class of each record, .* regression have none"
    ):
        LossThreshold().run(pf.Transcript.load(tmp_path / "run", "public", task("regression").model), None)
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["test_rmse"] > 0


@every_kind
def test_canaries_of_every_kind_can_be_planted(kind):
    canaries = noise_canaries(task(kind), 6)
    assert len(plant(task(kind), canaries, np.ones(6, dtype=bool)).targets) == len(task(kind).targets) + 6


class Diverged:
    """A predictor whose outputs are not finite."""

    def __init__(self, shape):
        self.shape = shape

    def logits(self, parameters, inputs):
        return torch.full((len(inputs), *self.shape), torch.nan)


@every_kind
def test_a_model_that_has_diverged_has_no_metrics_and_is_no_end_of_a_run(kind):
    own = task(kind).with_local_tests()
    line = storable(evaluate(own, pf.FedAvg(), Diverged(own.output_shape), {"parameters": torch.zeros(3)}, {}))
    assert line["test_loss"] is None
    if kind != "multi-label":
        assert line[own.headline.test] is None
        assert line["local_worst_tenth"] is None
        assert line[f"local_{own.headline.name}"] is None
