"""Parts written outside the package, one file each: they train, claim what they may, and pass as shipped ones do."""

import importlib
import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import attacks
import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.privacy.noise.source import NoiseSource

FOLDER = Path(__file__).parents[2] / "examples" / "extensions"
FILES = sorted(FOLDER.glob("*.py"))
LOOP = pf.Execution(engine="loop", workers=1, device="cpu")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def part(module, name):
    return getattr(importlib.import_module(module), name)


def normalised(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 10))


def digits(model="logistic"):
    return pf.load("digits", partition=pf.Dirichlet(clients=5, alpha=0.5), model=model)


ALGORITHMS = [("fednova", "FedNova"), ("fedbn", "FedBN"), ("ifca", "IFCA")]


def task_of(module):
    task = digits()
    return replace(task, model=normalised) if module == "fedbn" else task


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_part_is_one_short_file(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 40


@pytest.mark.parametrize("path", [path for path in FILES if "__main__" in path.read_text()], ids=lambda path: path.stem)
def test_a_part_runs_as_a_program(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("module", "name"), ALGORITHMS)
def test_an_algorithm_trains_the_same_in_both_engines_and_under_a_secure_sum(module, name):
    task, algorithm = task_of(module), part(module, name)("uniform")
    settings = {"rounds": 2, "training": pf.LocalTraining(learning_rate=0.1, batch_size=20)}
    loop = pf.simulate(task, algorithm, execution=LOOP, **settings)
    stacked = pf.simulate(task, algorithm, execution=pf.Execution(engine="vectorised", device="cpu"), **settings)
    secure = pf.simulate(task, algorithm, execution=LOOP, privacy=pf.Privacy(update=[pf.SecureSum()]), **settings)
    assert stacked.summary["warnings"] == []
    for state, value in loop.server.items():
        torch.testing.assert_close(value, stacked.server[state], rtol=0, atol=1e-4)
        torch.testing.assert_close(value, secure.server[state], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("module", "name"), ALGORITHMS)
def test_an_algorithm_is_charged_for_its_gradients_and_for_what_else_it_asks(module, name):
    algorithm = part(module, name)("uniform")
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1)

    def sample_epsilon(kind, *totals):
        privacy = pf.Privacy(training=dpsgd, statistics=totals)
        training = pf.LocalTraining(steps=2)
        run = pf.simulate(task_of(module), kind, rounds=2, training=training, privacy=privacy, execution=LOOP)
        return run.statement.cell("sample", "server").epsilon

    usual = sample_epsilon(pf.FedAvg(weighting="uniform"))
    if module == "ifca":  # its losses decide what is uploaded, so without noise of their own nothing is claimed
        assert math.isinf(sample_epsilon(algorithm))
        totals = [pf.NoisyTotal(one, max_norm=3.0, noise_multiplier=3.0) for one in algorithm.statistics]
        assert usual < sample_epsilon(algorithm, *totals) < math.inf
    else:
        assert sample_epsilon(algorithm) == usual


def test_fednova_with_equal_steps_is_fedavg():
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    settings = {"rounds": 2, "training": pf.LocalTraining(steps=3), "execution": LOOP}
    ours, plain = (pf.simulate(task, one, **settings) for one in (part("fednova", "FedNova")(), pf.FedAvg()))
    torch.testing.assert_close(ours.parameters, plain.parameters, rtol=0, atol=1e-6)


def test_fedbn_uploads_everything_but_the_normalisation_layers():
    run = pf.simulate(task_of("fedbn"), part("fedbn", "FedBN")(), rounds=2, execution=LOOP, record=True)
    layout = run.algorithm.context.layout
    assert len(run.transcript[0].uploads[0]["update"]) == layout.size - 2 * 16
    one, two = (layout.named_views(run.client_state[client]["parameters"]) for client in (0, 1))
    shared, first = (
        layout.named_views(run.server["parameters"]),
        layout.named_views(run.algorithm.context.fresh("a", 0)),
    )
    for name in ("2.weight", "2.bias"):
        assert torch.equal(shared[name], first[name])  # the server has never seen one: all begin at ones and zeros
        assert not torch.equal(one[name], two[name])


def test_ifca_tells_two_kinds_of_clients_apart():
    """Two kinds of clients whose labels contradict each other: one model cannot serve both."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(800, 10)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64")
    clients = np.arange(800) % 8
    labels = np.where(clients % 2 == 0, labels, 1 - labels)
    task = pf.Task.from_arrays(inputs, labels, clients=clients)
    training = pf.LocalTraining(learning_rate=0.5, batch_size=20, epochs=3)
    run = pf.simulate(task, part("ifca", "IFCA")("uniform"), rounds=10, training=training, execution=LOOP, seed=1)
    chosen = [int(run.client_state[client]["choice"].argmax()) for client in range(8)]
    assert len({*chosen[::2]}) == len({*chosen[1::2]}) == 1
    assert chosen[0] != chosen[1]


def test_top_k_sends_a_fraction_and_leaves_every_claim_as_it_was():
    TopK = part("top_k", "TopK")
    task = pf.load("digits", partition=pf.IID(clients=20), model="logistic")
    shares = (pf.Clip(1.0), pf.DiscreteGaussianNoise(4.0), pf.SecureSum())

    def run(*chain, record=False):
        algorithm, privacy = pf.FedAvg(weighting="uniform"), pf.Privacy(update=chain)
        return pf.simulate(task, algorithm, rounds=2, privacy=privacy, execution=LOOP, record=record)

    sparse = run(TopK(0.1), record=True).transcript[0].uploads[0]["update"]
    assert 0 < int((sparse != 0).sum()) <= 65
    claims = [[cell.epsilon for cell in one.statement.cells] for one in (run(TopK(0.1), *shares), run(*shares))]
    assert claims[0] == claims[1]
    assert max(claims[0]) < math.inf
    dense = run(TopK(1.0))
    assert torch.equal(dense.parameters, run().parameters)
    with pytest.raises(ConfigError, match="fraction is 0"):
        TopK(0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, math.inf])
def test_coarse_response_is_unbiased_with_the_variance_it_states(epsilon):
    """Means and variances of 200,000 answers within five standard errors: false alarms below 1e-6 each, seeds fixed."""
    mechanism = part("coarse_response", "CoarseResponse")(epsilon=epsilon, bound=100, levels=4)
    stream, count = NoiseSource.from_key(5).stream("sizes", 0), 200_000
    for size in (1, 20, 55, 100):
        found = np.array(mechanism.unbiased(mechanism.respond(np.full(count, size), stream)))
        variance = mechanism.variance([size])
        assert abs(found.mean() - size) <= 5 * math.sqrt(variance / count) + 1e-9
        spread = found.var()
        fourth = ((found - found.mean()) ** 4).mean()
        assert abs(spread - variance) <= 5 * math.sqrt(max(fourth - spread**2, 0) / count) + 1e-6


def test_coarse_response_keeps_its_epsilon():
    """The ratio of any answer's probabilities under any two sizes, exactly."""
    mechanism = part("coarse_response", "CoarseResponse")(epsilon=1.0, bound=10, levels=4)
    lie = (1 - mechanism.honesty) / mechanism.levels
    grid, sizes = np.linspace(1, 10, 4), np.arange(1, 11)
    rounding = np.maximum(0, 1 - np.abs(sizes[:, None] - grid) / 3)
    answers = lie + mechanism.honesty * rounding
    np.testing.assert_allclose(answers.sum(1), 1)
    assert math.log((answers.max(0) / answers.min(0)).max()) == pytest.approx(1.0)


def test_a_size_mechanism_from_outside_is_charged_in_a_run():
    privacy = pf.Privacy(
        training=pf.DPSGD(noise_multiplier=2.0, noise_at="server"),
        size=part("coarse_response", "CoarseResponse")(epsilon=2.0, bound=400, lower=100, levels=2),
    )
    task = pf.load("digits", partition=pf.IID(clients=5), model="logistic")
    run = pf.simulate(task, pf.FedSampling(samples_per_round=200), rounds=2, privacy=privacy, execution=LOOP)
    assert 2.0 < run.statement.cell("sample", "public").epsilon < math.inf


def test_an_attack_from_outside_is_judged_beside_its_nulls():
    task = digits()
    training = pf.LocalTraining(learning_rate=0.1)
    run = pf.simulate(task, pf.FedSampling(samples_per_round=300), rounds=3, training=training, record=True)
    sizes = torch.tensor(task.clients.sizes)
    auxiliary = attacks.Auxiliary(truth={"sizes": sizes})
    result = part("update_norm", "UpdateNorm")(mean_size=float(sizes.double().mean())).run(run.transcript, auxiliary)
    assert set(result.nulls) == {"estimated mean size", "true mean size"}
    assert result.metrics["relative_error"].value < result.nulls["true mean size"]["relative_error"].value


def test_an_audit_from_outside_holds_a_claim_and_refutes_a_false_one():
    table = {
        "rounds": 2,
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 2},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "training": {"steps": 1},
        "privacy": {"training": {"noise_multiplier": 1.0, "sample_rate": 0.5}},
    }
    audit = part("flipped_labels", "FlippedLabels")(canaries=40)
    result = audit.run(Experiment.from_dict(table), confidence=0.95, seed=0)
    assert not result.refuted
    assert 0 <= result.bound.epsilon <= result.claim < math.inf
