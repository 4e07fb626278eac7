"""GRP-FED against its pseudo-code in torch.optim, and the checks of its specification."""

import dataclasses
import math
from itertools import pairwise

import dp_accounting
import pytest
import torch
import torch.nn.functional as F
from dp_accounting.pld import PLDAccountant
from torch import nn

import privfl as pf
from privfl.algorithms.base import Algorithm
from privfl.algorithms.fair.adaptive_weights import loss_weights
from privfl.algorithms.fair.grpfed import GRPFed
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.federation.availability import Bernoulli
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.log import BARE_TOTAL
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task

SIZES = (7, 20, 13, 2)
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=5, epochs=2, momentum=0.9)
REPORTS = ("last_epoch_mean", "post_eval", "pre_eval", "last_batch")
HIDDEN = 6


def two_layer_head(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(64, 12), nn.Tanh())
        return Network(body, nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 10)), 12).double()


@pytest.fixture(scope="module")
def task():
    return dataclasses.replace(digits_task(SIZES), model=two_layer_head)


def clients_of(
    task, algorithm, *, client_state=None, training=TRAINING, round=0, chunk=None, dpsgd=None, parameters=None
):
    """What every client sends and keeps in one round, by client."""
    algorithm = algorithm.bind(task.context(1, 0))
    way = None if dpsgd is None else "layers"
    server = algorithm.start(flatten(task.model(0)) if parameters is None else parameters)
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    context = RoundContext(round, 0, NoiseSource.from_key(4), client_state or {})
    with LoopEngine(task, algorithm, training, channel, way=way, workers=1) as loop:
        engine = loop if chunk is None else VectorisedEngine(loop, chunk, way)
        results = engine.train(range(len(task.clients)), algorithm.broadcast(server), context)
        return {result.client: result for result in results}


def pseudo_code(task, algorithm, client, start, *, round=0, client_state=None):
    """Client m of algorithm 1 with five optimisers' worth of torch.optim, on the engine's batches."""
    networks = {name: task.model(0) for name in ("global", "local", "reference")}
    client_state = client_state or {
        "discriminator": algorithm.bind(task.context(1, 0)).initial_client_state(client)["discriminator"]
    }
    if "personal" in client_state:
        nn.utils.vector_to_parameters(client_state["personal"].clone(), networks["local"].parameters())
    for name in ("global", "reference"):
        nn.utils.vector_to_parameters(start.clone(), networks[name].parameters())
    head = [parameter.clone() for parameter in networks["global"].head.parameters()]
    nn.utils.vector_to_parameters(torch.cat([p.flatten() for p in head]), networks["local"].head.parameters())
    judge = nn.Sequential(nn.Linear(12, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, 1)).double()
    nn.utils.vector_to_parameters(client_state["discriminator"].clone(), judge.parameters())
    rate = {"lr": TRAINING.learning_rate, "momentum": TRAINING.momentum}
    for_global = torch.optim.SGD(networks["global"].parameters(), **rate)
    for_local = torch.optim.SGD(networks["local"].body.parameters(), **rate)
    for_judge = torch.optim.SGD(judge.parameters(), **rate)

    def fools(score):
        return F.softplus(-score) if algorithm.disc_loss == "bce" else -F.softplus(score)

    def full_loss():
        rows = task.clients[client]
        return float(F.cross_entropy(networks["global"](task.inputs[rows]), task.targets[rows]).detach())

    losses, sizes, before = [], [], full_loss()
    rows, order = task.clients[client], torch_stream(0, "batches", round, client)
    for _ in range(TRAINING.epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(TRAINING.batch_size):
            x, y = task.inputs[batch], task.targets[batch]
            for_global.zero_grad()
            loss = F.cross_entropy(networks["global"](x), y)
            loss.backward()
            for_global.step()
            losses.append(float(loss.detach()))
            sizes.append(len(batch))
            for_local.zero_grad()
            features = networks["local"].features(x)
            task_loss = F.cross_entropy(networks["local"].head(features), y)
            (algorithm.beta * task_loss + (1 - algorithm.beta) * fools(judge(features)).mean()).backward()
            for_local.step()
            reference = networks["reference" if algorithm.disc_ref == "broadcast" else "global"]
            with torch.no_grad():
                of_global, of_local = reference.features(x), networks["local"].features(x)
            for_judge.zero_grad()
            sign = -1 if algorithm.disc_loss == "paper" else 1
            terms = F.softplus(-sign * judge(of_global)) + F.softplus(sign * judge(of_local))
            (sign * terms).mean().backward()
            for_judge.step()
    last = math.ceil(len(rows) / TRAINING.batch_size)
    mean = sum(a * b for a, b in zip(losses[-last:], sizes[-last:], strict=True)) / len(rows)
    reports = {"last_epoch_mean": mean, "post_eval": full_loss(), "pre_eval": before, "last_batch": losses[-1]}
    vector = nn.utils.parameters_to_vector
    return {
        "update": vector(networks["global"].parameters()).detach() - start,
        "personal": vector(networks["local"].parameters()).detach(),
        "discriminator": vector(judge.parameters()).detach(),
        "loss": torch.tensor(reports[algorithm.loss_report], dtype=torch.float64),
    }


@pytest.mark.parametrize("chunk", [None, 3], ids=["loop", "vectorised"])
@pytest.mark.parametrize(
    "algorithm",
    [
        *(GRPFed(hidden=HIDDEN, loss_report=report) for report in REPORTS),
        GRPFed(hidden=HIDDEN, disc_loss="paper", beta=0.2),
        GRPFed(hidden=HIDDEN, disc_loss="bce", disc_ref="current"),
    ],
    ids=[*REPORTS, "paper", "non-saturating, current"],
)
def test_a_client_does_what_the_pseudo_code_says(task, algorithm, chunk):
    start = flatten(task.model(7))
    for client, result in clients_of(task, algorithm, parameters=start, chunk=chunk).items():
        twin = pseudo_code(task, algorithm, client, start)
        assert sorted(result.upload) == ["loss", "update"]
        assert sorted(result.client_state) == ["discriminator", "personal"]
        for name, value in {**result.upload, **result.client_state}.items():
            torch.testing.assert_close(value, twin[name], rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk", [None, 3], ids=["loop", "vectorised"])
def test_local_extractor_and_discriminator_go_on_from_where_they_were(task, chunk):
    algorithm = GRPFed(hidden=HIDDEN)
    client_state = {client: result.client_state for client, result in clients_of(task, algorithm).items()}
    start = flatten(task.model(8))
    found = clients_of(task, algorithm, client_state=client_state, round=1, parameters=start, chunk=chunk)
    for client, result in found.items():
        twin = pseudo_code(task, algorithm, client, start, round=1, client_state=client_state[client])
        for name, value in result.client_state.items():
            torch.testing.assert_close(value, twin[name], rtol=0, atol=1e-11)


def test_a_batch_tells_the_printed_discriminator_from_a_stable_one(task):
    """The printed loss moves the logits with gradients that grow with certainty, so the two must come apart."""
    client_state = [clients_of(task, GRPFed(disc_loss=kind))[1].client_state for kind in ("saturating", "paper")]
    assert float((client_state[0]["discriminator"] - client_state[1]["discriminator"]).abs().max()) > 1e-3


def test_the_local_models_head_is_the_received_one_bit_for_bit(task):
    start, training = flatten(task.model(7)), dataclasses.replace(TRAINING, weight_decay=0.1)
    head = task.context(1, 0).head
    assert int(head.sum()) == 12 * 8 + 8 + 8 * 10 + 10
    for chunk in (None, 3):
        for result in clients_of(task, GRPFed(), parameters=start, training=training, chunk=chunk).values():
            assert torch.equal(result.client_state["personal"][head], start[head])
            assert bool((result.client_state["personal"][~head] != start[~head]).any())


def test_with_beta_one_the_local_extractor_ignores_the_discriminator(task):
    found = [clients_of(task, GRPFed(beta=1.0, hidden=hidden)) for hidden in (6, 50)]
    for client in range(len(SIZES)):
        assert torch.equal(found[0][client].client_state["personal"], found[1][client].client_state["personal"])
    found = [clients_of(task, GRPFed(beta=0.9, hidden=hidden)) for hidden in (6, 50)]
    assert not torch.equal(found[0][1].client_state["personal"], found[1][1].client_state["personal"])


def test_with_beta_zero_the_local_extractor_ignores_the_labels(task):
    other = dataclasses.replace(task, targets=(task.targets + 3) % 10)
    found = [clients_of(one, GRPFed(beta=0.0)) for one in (task, other)]
    for client in range(len(SIZES)):
        for name, value in found[0][client].client_state.items():
            assert torch.equal(value, found[1][client].client_state[name])
        assert not torch.equal(found[0][client].upload["update"], found[1][client].upload["update"])


class WithoutLocalBranch(Algorithm):
    """Plain local SGD: the global path alone. The name is the key of the noise, so it is the same."""

    name = "grp-fed"


NOISY = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.4)


@pytest.mark.parametrize("dpsgd", [None, NOISY], ids=["plain", "DP-SGD"])
def test_the_global_path_is_bit_identical_without_the_local_branch(task, dpsgd):
    alone = clients_of(task, WithoutLocalBranch(), dpsgd=dpsgd)
    for beta in (0.0, 0.5, 1.0):
        for client, result in clients_of(task, GRPFed(beta=beta), dpsgd=dpsgd).items():
            assert torch.equal(result.upload["update"], alone[client].upload["update"])


@pytest.mark.parametrize("dpsgd", [None, NOISY], ids=["plain", "DP-SGD"])
@pytest.mark.parametrize("chunk", [None, 3], ids=["loop", "vectorised"])
def test_what_a_client_keeps_enters_no_upload(task, chunk, dpsgd):
    algorithm, draws = GRPFed(), torch.Generator().manual_seed(0)
    fresh = algorithm.bind(task.context(1, 0)).initial_client_state(0)["discriminator"]
    others = {
        client: {
            "personal": torch.randn(flatten(task.model(0)).shape, generator=draws, dtype=torch.float64),
            "discriminator": torch.randn(fresh.shape, generator=draws, dtype=torch.float64),
        }
        for client in range(len(SIZES))
    }
    found = [
        clients_of(task, algorithm, client_state=client_state, chunk=chunk, dpsgd=dpsgd)
        for client_state in ({}, others)
    ]
    for client in range(len(SIZES)):
        one, other = found[0][client], found[1][client]
        assert all(torch.equal(value, other.upload[name]) for name, value in one.upload.items())
        assert not torch.equal(one.client_state["personal"], other.client_state["personal"])
        assert one.log == other.log


def test_neither_beta_nor_the_discriminator_changes_a_runs_global_model(task):
    runs = [
        pf.simulate(task, algorithm, rounds=3, training=TRAINING)
        for algorithm in (GRPFed(), GRPFed(beta=1.0), GRPFed(disc_loss="paper", hidden=7, disc_ref="current"))
    ]
    assert all(torch.equal(runs[0].parameters, other.parameters) for other in runs[1:])


def test_the_server_weighs_updates_by_powers_of_losses(task):
    start = flatten(task.model(0))
    found = clients_of(task, GRPFed())
    weights = loss_weights(torch.stack([found[client].upload["loss"] for client in range(4)]), 10.0)
    expected = start + sum(weight * found[client].upload["update"] for client, weight in enumerate(weights))
    run = pf.simulate(task, GRPFed(), rounds=1, training=TRAINING)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
    assert run.metrics[0]["q"] == 10
    assert run.metrics[0]["effective_clients"] == pytest.approx(1 / float(weights.square().sum()), rel=1e-9)


def test_power_zero_that_never_moves_is_uniform_fedavg(task):
    runs = [
        pf.simulate(task, algorithm, rounds=3, training=TRAINING)
        for algorithm in (GRPFed(q=0.0, q_step=0.0), pf.FedAvg(weighting="uniform"))
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_the_power_follows_the_relative_change_of_the_spread(task):
    run = pf.simulate(task, GRPFed(), rounds=6, training=TRAINING)
    for before, after in pairwise(run.metrics):
        change = 0.5 * (after["sigma"] - before["sigma"]) / ((after["sigma"] + before["sigma"]) / 2)
        assert after["q"] == pytest.approx(before["q"] + change, abs=1e-12)
    assert len({line["q"] for line in run.metrics}) > 3


def test_one_client_alone_is_copied_and_moves_no_power(task):
    one = dataclasses.replace(digits_task([30]), model=two_layer_head)
    algorithm = GRPFed()
    run = pf.simulate(one, algorithm, rounds=1, training=TRAINING)
    expected = flatten(one.model(0)) + clients_of(one, algorithm)[0].upload["update"]
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-14)
    longer = pf.simulate(one, algorithm, rounds=3, training=TRAINING)
    assert [line["q"] for line in longer.metrics] == [10, 10, 10]
    assert all("sigma" not in line for line in longer.metrics)
    assert any("effective clients" in warning for warning in longer.summary["warnings"])


def test_rounds_with_fewer_than_two_answers_leave_the_power_alone(task):
    away = Bernoulli(0.6)
    run = pf.simulate(task, GRPFed(), rounds=12, training=TRAINING, availability=away, seed=1)
    answers = [line["clients"] for line in run.metrics]
    assert min(answers) < 2 < max(answers)
    for before, after in pairwise(run.metrics):
        if after["clients"] < 2:
            assert (after["q"], after.get("sigma")) == (before["q"], before.get("sigma"))


def test_the_last_known_losses_of_absent_clients_belong_to_the_spread(task):
    algorithm = GRPFed(sigma_scope="last_known", loss_report="pre_eval")
    run = pf.simulate(task, algorithm, rounds=2, training=TRAINING, cohort=pf.FixedCohort(2), seed=3)
    narrow = pf.simulate(
        task, GRPFed(loss_report="pre_eval"), rounds=2, training=TRAINING, cohort=pf.FixedCohort(2), seed=3
    )
    assert run.metrics[0]["sigma"] == narrow.metrics[0]["sigma"]
    assert run.metrics[1]["sigma"] != narrow.metrics[1]["sigma"]


def test_two_passes_of_sums_train_the_same_model_as_all_losses_do(task):
    runs = [
        pf.simulate(task, GRPFed(loss_report="pre_eval", form=form), rounds=4, training=TRAINING)
        for form in ("each", "sums")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-9)
    for one, other in zip(*(run.metrics for run in runs), strict=True):
        for name in ("q", "sigma", "mean_loss"):
            assert other[name] == pytest.approx(one[name], rel=1e-8)
        assert other["scale"] >= one["max_loss"] * (1 - 1e-9)


def test_in_the_form_of_sums_the_server_sees_nothing_of_one_client_alone(task):
    algorithm = GRPFed(loss_report="pre_eval", form="sums")
    survey = algorithm.survey()
    assert survey is not None
    assert {field.name: field.combine for field in survey.fields()} == dict.fromkeys(("loss", "square", "one"), "sum")
    assert {field.name: field.combine for field in algorithm.fields()} == {"update": "sum", "share": "sum"}


def test_a_cap_on_the_weights_keeps_many_clients_in_the_mean(task):
    capped = pf.simulate(task, GRPFed(lambda_max=0.3), rounds=3, training=TRAINING)
    free = pf.simulate(task, GRPFed(), rounds=3, training=TRAINING)
    assert all(line["effective_clients"] >= 1 / 0.3 for line in capped.metrics)
    assert min(line["effective_clients"] for line in free.metrics) < 1 / 0.3


def test_stacked_clients_run_as_they_do_one_by_one(task):
    for algorithm in (GRPFed(), GRPFed(loss_report="pre_eval", form="sums"), GRPFed(loss_report="post_eval")):
        runs = [
            pf.simulate(task, algorithm, rounds=3, training=TRAINING, execution=pf.Execution(engine=engine))
            for engine in ("loop", "vectorised")
        ]
        torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-9)


def test_an_own_model_has_the_head_it_was_trained_with_or_the_latest(task):
    head, server = task.context(1, 0).head, {"parameters": flatten(task.model(5))}
    client_state = {"personal": flatten(task.model(6))}
    paired = GRPFed().bind(task.context(1, 0)).personal(server, client_state)["personal"]
    latest = GRPFed(personal_head="latest").bind(task.context(1, 0)).personal(server, client_state)["personal"]
    assert torch.equal(paired, client_state["personal"])
    assert torch.equal(latest[head], server["parameters"][head])
    assert torch.equal(latest[~head], client_state["personal"][~head])


def test_a_client_that_never_trained_uses_the_global_model(task):
    algorithm = GRPFed().bind(task.context(1, 0))
    server = {"parameters": flatten(task.model(5))}
    for client_state in ({}, algorithm.initial_client_state(2)):
        assert torch.equal(algorithm.personal(server, client_state)["personal"], server["parameters"])


def test_a_bound_on_losses_bounds_the_report(task):
    free = clients_of(task, GRPFed(loss_report="pre_eval"))
    loose = clients_of(task, GRPFed(loss_report="pre_eval", loss_bound=100.0))
    tight = clients_of(task, GRPFed(loss_report="pre_eval", loss_bound=0.5))
    for client in range(len(SIZES)):
        torch.testing.assert_close(loose[client].upload["loss"], free[client].upload["loss"], rtol=1e-12, atol=0)
        assert float(tight[client].upload["loss"]) <= 0.5


def test_a_client_whose_data_is_broken_is_left_out_and_the_others_decide(task):
    broken = task.inputs.clone()
    broken[task.clients[1]] = math.nan
    run = pf.simulate(dataclasses.replace(task, inputs=broken), GRPFed(), rounds=2, training=TRAINING)
    assert [line["clients"] for line in run.metrics] == [3, 3]
    start, found = flatten(task.model(0)), clients_of(task, GRPFed())
    others = [found[client].upload for client in (0, 2, 3)]
    weights = loss_weights(torch.stack([upload["loss"] for upload in others]), 10.0)
    one = pf.simulate(dataclasses.replace(task, inputs=broken), GRPFed(), rounds=1, training=TRAINING)
    expected = start + sum(weight * upload["update"] for weight, upload in zip(weights, others, strict=True))
    torch.testing.assert_close(one.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm", [GRPFed(sigma_scope="last_known"), GRPFed(form="sums", loss_report="pre_eval")], ids=["each", "sums"]
)
def test_an_interrupted_run_goes_on_to_the_same_model_and_power(task, algorithm, tmp_path):
    settings = {
        "rounds": 4,
        "training": TRAINING,
        "cohort": pf.FixedCohort(3),
        "execution": pf.Execution(checkpoint_seconds=0.0),
    }

    def stop(simulation, line):
        if line["round"] == 1:
            raise InterruptedError

    whole = pf.simulate(task, algorithm, **settings)
    with pytest.raises(InterruptedError):
        pf.simulate(task, algorithm, **settings, out=tmp_path / "run", callbacks=[stop])
    resumed = pf.simulate(task, algorithm, **settings, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.metrics == whole.metrics


def cell(run, unit, observer):
    return run.statement.cell(unit, observer)


def test_without_mechanisms_nothing_is_claimed(task):
    run = pf.simulate(task, GRPFed(), rounds=1, training=TRAINING)
    assert all(entry.epsilon == math.inf for entry in run.statement.cells)


def private(task, algorithm, *, statistics=(), rounds=2):
    privacy = pf.Privacy(training=NOISY, statistics=statistics, noise_key=5)
    return pf.simulate(
        task, algorithm, rounds=rounds, training=dataclasses.replace(TRAINING, steps=3), privacy=privacy, seed=1
    )


@pytest.mark.parametrize("report", REPORTS)
def test_dp_sgd_alone_does_not_cover_the_reported_loss(task, report):
    run = private(task, GRPFed(loss_report=report))
    for observer in ("server", "public"):
        entry = cell(run, "sample", observer)
        assert entry.epsilon == math.inf
        assert BARE_TOTAL in str(entry)


@pytest.mark.parametrize("report", ["pre_eval", "post_eval"])
def test_noise_on_gradients_and_on_the_report_composes_to_a_finite_epsilon(task, report):
    noise = NoisyTotal("loss", max_norm=1.0, noise_multiplier=4.0)
    run = private(task, GRPFed(loss_report=report, loss_bound=5.0), statistics=(noise,))
    reference = PLDAccountant()
    reference.compose(dp_accounting.PoissonSampledDpEvent(0.4, dp_accounting.GaussianDpEvent(1.0)), 6)
    reference.compose(dp_accounting.GaussianDpEvent(4.0), 2)
    for observer in ("server", "public"):
        assert cell(run, "sample", observer).epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-3)
        assert cell(run, "client", observer).epsilon == math.inf


def test_the_form_of_sums_takes_its_noisy_total_in_the_survey(task):
    noise = NoisyTotal("loss", max_norm=1.0, noise_multiplier=4.0)
    algorithm = GRPFed(loss_report="pre_eval", form="sums", loss_bound=5.0)
    run = private(task, algorithm, statistics=(noise,))
    assert cell(run, "sample", "server").epsilon < math.inf


@pytest.mark.parametrize("report", ["last_epoch_mean", "last_batch"])
def test_reports_of_many_totals_cannot_be_made_noisy(task, report):
    with pytest.raises(ConfigError, match="no total named 'loss'"):
        private(task, GRPFed(loss_report=report), statistics=(NoisyTotal("loss", 1.0, 1.0),))


def test_noise_on_the_update_is_refused_because_the_loss_travels_beside_it(task):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    with pytest.raises(ConfigError, match="one field 'update'"):
        pf.simulate(task, GRPFed(), rounds=1, training=TRAINING, privacy=privacy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"q": -1.0}, "q is -1.0"),
        ({"q": 60.0}, "q is 60.0"),
        ({"beta": 1.5}, "beta is 1.5"),
        ({"loss_bound": 0.0}, "loss_bound is 0.0"),
        ({"hidden": 0}, "hidden is 0"),
        ({"lambda_max": 0.0}, "lambda_max is 0.0"),
        ({"loss_report": "pre_evl"}, "did you mean 'pre_eval'"),
        ({"form": "sums"}, "loss_report 'last_epoch_mean'"),
        ({"form": "sums", "loss_report": "pre_eval", "lambda_max": 0.2}, "lambda_max 0.2"),
        ({"form": "sums", "loss_report": "pre_eval", "sigma_scope": "last_known"}, "sigma_scope 'last_known'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        GRPFed(**settings)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ConfigError, match="which this algorithm needs"):
        pf.simulate(digits_task(SIZES), GRPFed(), rounds=1)


@pytest.mark.parametrize("report", ["last_batch", "last_epoch_mean"])
@pytest.mark.parametrize("training", [None, NOISY])
def test_noise_on_the_losses_of_single_batches_is_refused_before_any_work(task, report, training):
    noise = NoisyTotal("batch-losses", max_norm=1.0, noise_multiplier=4.0)
    with pytest.raises(
        ConfigError, match="takes the total 'batch-losses' of every batch, and noise is accounted for one"
    ):
        pf.simulate(
            task, GRPFed(loss_report=report), rounds=1, privacy=pf.Privacy(training=training, statistics=[noise])
        )
