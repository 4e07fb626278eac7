"""Whole runs under secure aggregation: the same models, sums instead of uploads, and what the statement then says."""

from dataclasses import replace

import dp_accounting as dp
import pytest
import torch
from dp_accounting.rdp import RdpAccountant

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.channel.field import Field
from privfl.privacy.mechanisms.distributed import DistributedSum
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource

CLIENTS = 6
IDEAL, PROTOCOL = pf.SecureSum(mode="ideal"), pf.SecureSum()
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=20)
SUMS = {
    "fedavg": pf.FedAvg(),
    "fedavg uniform": pf.FedAvg(weighting="uniform"),
    "fedprox": pf.FedProx(),
    "fedyogi": pf.FedYogi(),
    "grp-fed": pf.GRPFed(form="sums", loss_report="pre_eval"),
    "rebafl": pf.ReBaFL(),
    "superfed": pf.SuPerFed(),
    "aaggff-d": pf.AAggFFDSums(),
    "bsm-fedavg": pf.BalancedFedAvg(),
}


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=CLIENTS), model="two-nn", model_options={"hidden": (8, 8)})


def train(task, algorithm, *chain, rounds=2, **settings):
    settings = {"training": TRAINING, "seed": 3, "execution": pf.Execution(engine="loop", workers=1), **settings}
    privacy = settings.pop("privacy", pf.Privacy(noise_key=1))
    return pf.simulate(task, algorithm, rounds=rounds, privacy=replace(privacy, update=chain), **settings)


def epsilons(run):
    return {f"{cell.unit}/{cell.observer}": cell.epsilon for cell in run.statement.cells}


@pytest.mark.usefixtures("common_noise")
@pytest.mark.parametrize("name", SUMS)
def test_the_protocol_and_the_trusted_sum_give_the_same_model_and_it_is_the_plain_one_up_to_rounding(task, name):
    plain, ideal, protocol = (train(task, SUMS[name], *chain, record=True) for chain in ((), (IDEAL,), (PROTOCOL,)))
    assert torch.equal(ideal.parameters, protocol.parameters)
    assert torch.allclose(plain.parameters, protocol.parameters, atol=1e-5)
    assert all(len(seen.training.uploads) == CLIENTS for seen in plain.transcript)
    assert all(seen.training.uploads is None for run in (ideal, protocol) for seen in run.transcript)
    assert protocol.summary["dropped"] == {}


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [(pf.AAggFFS(), "server weighs single clients"), (pf.GRPFed(), "the server needs every client's 'update'")],
    ids=["aaggff-s", "grp-fed"],
)
def test_algorithms_that_need_single_clients_are_refused_before_training(task, algorithm, why):
    with pytest.raises(ConfigError, match=why):
        train(task, algorithm, IDEAL)


def test_centralised_training_has_no_sum_to_hide_in(task):
    with pytest.raises(ConfigError, match="no clients whose sum could hide them"):
        train(task, pf.Centralized(), IDEAL)


def test_sizes_travel_inside_the_sum_and_the_statement_says_that_their_sum_is_opened(task):
    run = train(task, pf.FedAvg(), PROTOCOL, record=True)
    (reason,) = [why for why in run.statement.cell("client", "server").reasons if why.startswith("size")]
    assert reason == "size: the exact sum of a cohort's sizes is opened with every secure sum"
    for seen in run.transcript:
        assert seen.sizes == {}
        assert seen.training.weights == (1,) * CLIENTS
        assert seen.training.uploads is None
        assert set(seen.training.total) == {"update"}


def test_of_hidden_weights_the_server_is_told_their_sum_alone(task):
    told = []

    class Watching(pf.FedAvg):
        def aggregate(self, server, total, round, training):
            told.append((set(round.weights.tolist()), float(round.weight)))
            return super().aggregate(server, total, round, training)

    uneven = pf.load("digits", partition=pf.Dirichlet(clients=CLIENTS, alpha=0.5), model="logistic")
    train(uneven, Watching(), IDEAL, rounds=1)
    train(uneven, Watching(), rounds=1)
    samples = float(uneven.clients.sizes.sum())
    assert told[0] == ({1.0}, samples)
    assert told[1] == (set(map(float, uneven.clients.sizes.tolist())), samples)


def test_sizes_that_must_be_known_first_are_not_let_past_the_sum(task):
    with pytest.raises(ConfigError, match="fedsampling needs to know sizes, which would be sent in the clear"):
        train(task, pf.FedSampling(samples_per_round=200), IDEAL)
    size = pf.Privacy(noise_key=1, size=pf.LaplaceSize(epsilon=3.0, bound=400), max_size_error=100.0)
    assert train(task, pf.FedSampling(samples_per_round=200), IDEAL, privacy=size).summary["rounds"] == 2


def test_secure_sums_alone_protect_nobody(task):
    run = train(task, pf.FedAvg(weighting="uniform"), PROTOCOL)
    assert set(epsilons(run).values()) == {float("inf")}
    said = " ".join(run.statement.caveats)
    assert "a server that lies as it likes (active) and works with at most 10 % of a cohort opens one sum" in said
    assert "of two cohorts that differ in one client the difference is that client's upload" in said
    trusting = train(task, pf.FedAvg(weighting="uniform"), pf.SecureSum(adversary="semi-honest"))
    assert "A server that lies about who survived reads every upload." in " ".join(trusting.statement.caveats)


@pytest.mark.parametrize(
    ("adversary", "says"),
    [("active", "the server may lie, with 10 % of a\n"), ("semi-honest", "only if the server keeps to the")],
)
def test_the_cell_of_the_server_says_what_the_server_may_do(task, adversary, says):
    chain = (pf.Clip(1.0), pf.DiscreteGaussianNoise(4.0), pf.SecureSum(mode="ideal", adversary=adversary))
    statement = train(task, pf.FedAvg(weighting="uniform"), *chain, rounds=1).statement
    assert str(statement).count(says[:30]) == 2, "in the two cells of the server"
    assert says[:30] in statement.to_html()
    assert type(statement).from_json(statement.to_json()) == statement
    bare = train(task, pf.FedAvg(weighting="uniform"), pf.SecureSum(mode="ideal", adversary=adversary), rounds=1)
    assert bare.statement.server == "", "a cell at infinity needs no server"
    ideal = train(task, pf.FedAvg(weighting="uniform"), IDEAL)
    assert any("trusted party" in caveat for caveat in ideal.statement.caveats)


@pytest.mark.usefixtures("common_noise")
def test_noise_that_the_server_adds_after_the_sum_does_not_cover_the_server(task):
    run = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), PROTOCOL, pf.GaussianNoise(2.0))
    (reason,) = run.statement.cell("client", "server").reasons
    assert reason == "update: the server opens the sum of the updates without noise; noise is added only after that"
    plain = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), pf.GaussianNoise(2.0))
    assert epsilons(run) == epsilons(plain)
    assert torch.allclose(run.parameters, plain.parameters, atol=1e-4)


@pytest.mark.parametrize(
    "noise", [pf.DiscreteGaussianNoise(2.0), pf.SkellamNoise(2.0)], ids=lambda one: type(one).__name__
)
def test_noise_in_shares_covers_both_observers_at_what_dp_accounting_says(task, noise):
    run = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), noise, pf.SecureSum(threshold=0.7), rounds=3)
    spent = epsilons(run)
    assert spent["client/server"] == spent["client/public"]
    assert spent["sample/server"] == spent["sample/public"] > spent["client/server"]
    accountant = RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(2.0), 3)
    assert spent["client/server"] == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert spent["client/server"] >= accountant.get_epsilon(1e-5)


def test_a_sum_of_discrete_gaussians_costs_its_zcdp_event(task):
    noise, secure = pf.DiscreteGaussianNoise(1.5), pf.SecureSum(threshold=0.7, corrupt=0.2)
    run = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), noise, secure, rounds=2)
    size = run.parameters.numel()
    event = noise.event(
        DistributedSum(dimension=size, levels=2.0**17, cohort=CLIENTS, survivors=secure.honest(CLIENTS))
    )
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event, 2)
    assert epsilons(run)["client/server"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_shares_noise_the_sum_as_much_as_they_claim_when_nobody_drops_out_and_never_less(task):
    """With C = 1, z = 3, and at least 5 of 6 survivors of whom all are honest: deviation 3·√(6/5) on every number."""
    model = train(task, pf.FedAvg(weighting="uniform"), rounds=1).parameters.numel()
    tiny = pf.LocalTraining(learning_rate=1e-9, batch_size=20)
    secure = pf.SecureSum(threshold=0.8, corrupt=0.0)
    noisy = train(
        task,
        pf.FedAvg(weighting="uniform"),
        pf.Clip(1.0),
        pf.DiscreteGaussianNoise(3.0),
        secure,
        rounds=1,
        training=tiny,
    )
    start = train(task, pf.FedAvg(weighting="uniform"), rounds=1, training=tiny)
    deviation = float((noisy.parameters - start.parameters).double().std()) * CLIENTS
    assert deviation == pytest.approx(3 * (6 / 5) ** 0.5, rel=5 / (2 * model) ** 0.5)


def poison(task, client):
    """``task`` with inputs that make ``client``'s update not finite."""
    inputs = task.inputs.clone()
    inputs[task.clients[client]] = float("nan")
    return replace(task, inputs=inputs)


def test_a_client_whose_upload_is_not_finite_is_dropped_counted_and_the_others_sum_is_theirs(task):
    broken = poison(task, 2)
    plain = train(broken, pf.FedAvg(), rounds=1)
    secure = train(broken, pf.FedAvg(), pf.SecureSum(threshold=0.6), rounds=1)
    assert secure.summary["dropped"] == plain.summary["dropped"] == {"sent a non-finite 'update'": 1}
    assert torch.allclose(plain.parameters, secure.parameters, atol=1e-6)


def test_a_number_beyond_the_declared_range_drops_its_client(task):
    run = train(task, pf.FedAvg(weighting="uniform"), pf.SecureSum(threshold=0.6, largest=1e-6, mode="ideal"), rounds=1)
    assert run.summary["dropped"]["sent a number beyond the range of the secure sum"] == CLIENTS


def test_too_few_survivors_give_the_round_up_and_the_run_goes_on(task):
    for mode in ("ideal", "protocol"):
        broken = task
        for client in range(3):
            broken = poison(broken, client)
        start = train(task, pf.FedAvg(), rounds=1, training=replace(TRAINING, learning_rate=1e-30))
        run = train(broken, pf.FedAvg(), pf.SecureSum(threshold=0.6, mode=mode), rounds=2)
        assert run.summary["rounds"] == 2
        assert run.summary["dropped"]["took part in a secure sum that was aborted"] == 6
        assert torch.equal(run.parameters, start.parameters)


def test_a_cohort_too_small_to_hide_in_is_not_asked(task):
    run = train(task, pf.FedAvg(), IDEAL, rounds=4, availability=pf.Bernoulli(probability=0.3))
    given_up = [line for line in run.metrics if any("hides nobody" in why for why in line.get("dropped", {}))]
    assert given_up
    assert all(line["clients"] == 0 for line in given_up)
    with pytest.raises(ConfigError, match="a secure sum of 2 clients hides nobody"):
        train(task, pf.FedAvg(), IDEAL, cohort=pf.FixedCohort(2))


def test_where_clients_add_noise_a_broken_upload_counts_as_zeros(task):
    chain = (pf.Clip(1.0), pf.DiscreteGaussianNoise(1.0), pf.SecureSum(threshold=0.6))
    run = train(poison(task, 0), pf.FedAvg(weighting="uniform"), *chain, rounds=1)
    assert run.summary["dropped"] == {}
    assert bool(run.parameters.isfinite().all())
    assert run.metrics[-1]["clients"] == CLIENTS


def test_a_client_whose_upload_counts_as_zeros_keeps_what_it_had(task):
    """MOON's client 0 fails in both rounds: it never took part, so it has nothing, and the others have their models."""
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")])
    run = pf.simulate(poison(task, 0), pf.MOON("uniform"), rounds=2, privacy=privacy, execution=pf.Execution(workers=1))
    assert run.summary["dropped"] == {}
    assert sorted(run.client_state) == list(range(1, CLIENTS))
    assert all(
        bool(value.isfinite().all()) for client_state in run.client_state.values() for value in client_state.values()
    )


def test_both_engines_submit_the_same_integers_up_to_float_rounding(task):
    chain = (pf.Clip(0.5), pf.SecureSum(mode="ideal"), pf.GaussianNoise(0.1))
    loop, stacked = (
        train(task, pf.FedAvg(weighting="uniform"), *chain, execution=pf.Execution(engine=engine))
        for engine in ("loop", "vectorised")
    )
    assert torch.allclose(loop.parameters, stacked.parameters, atol=1e-4)


@pytest.mark.parametrize("noise", [pf.TreeNoise(4.0), pf.BandedNoise(4.0)], ids=lambda one: type(one).__name__)
def test_correlated_noise_is_one_gaussian_event_for_a_client_that_comes_once_in_the_run(task, noise):
    run = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), noise, cohort=pf.Rotation(period=3), rounds=3)
    once = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), pf.GaussianNoise(4.0), rounds=1)
    assert epsilons(run)["client/public"] == pytest.approx(epsilons(once)["client/public"], rel=1e-6)
    assert epsilons(run)["client/server"] == float("inf")


@pytest.mark.usefixtures("common_noise")
def test_adaptive_clipping_moves_its_bound_and_costs_the_event_of_its_noise(task):
    clip = pf.AdaptiveClip(100.0, count_noise=0.2)
    run = train(task, pf.FedAvg(weighting="uniform"), clip, pf.GaussianNoise(0.2), rounds=4)
    fixed = train(task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), pf.GaussianNoise(0.2), rounds=4)
    assert float(run.server["clip_norm"]) < 100.0
    assert epsilons(run) == epsilons(fixed)
    secure = train(task, pf.FedAvg(weighting="uniform"), clip, PROTOCOL, pf.GaussianNoise(0.2), rounds=4)
    assert float(secure.server["clip_norm"]) == pytest.approx(float(run.server["clip_norm"]), rel=1e-6)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ((pf.Clip(1.0), pf.DiscreteGaussianNoise(1.0)), "protect nobody one by one; put SecureSum"),
        ((pf.Clip(1.0), PROTOCOL, pf.SkellamNoise(1.0)), "SkellamNoise is added by clients, so it belongs before"),
        ((pf.Clip(1.0), pf.GaussianNoise(1.0), PROTOCOL), "GaussianNoise is added by the server, so it belongs after"),
        ((PROTOCOL, pf.Clip(1.0)), "clips after SecureSum"),
        ((pf.AdaptiveClip(1.0), pf.TreeNoise(1.0)), "one bound for the whole run"),
        ((pf.AdaptiveClip(1.0), pf.GaussianNoise(1.0, at="client")), "counts over the cohort"),
        ((pf.Clip(1.0), pf.AdaptiveClip(1.0)), "a mechanism twice"),
        ((pf.Clip(1.0), pf.TreeNoise(1.0)), "nothing to correlate"),
    ],
)
def test_chains_that_make_no_sense_are_refused_in_one_sentence(task, chain, message):
    with pytest.raises(ConfigError, match=message):
        train(task, pf.FedAvg(weighting="uniform"), *chain)


CHAINS = {
    "shares": (pf.Clip(1.0), pf.DiscreteGaussianNoise(1.0), PROTOCOL),
    "adaptive": (pf.AdaptiveClip(3.0, count_noise=2.0), pf.GaussianNoise(1.0)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_an_interrupted_run_resumes_to_the_same_numbers(task, tmp_path, name):
    class Killed(Exception):
        pass

    def kill(simulation, line):
        if line["round"] == 1 and simulation.round == 2:
            raise Killed

    whole = train(task, pf.FedAvg(weighting="uniform"), *CHAINS[name], rounds=4)
    with pytest.raises(Killed):
        train(
            task,
            pf.FedAvg(weighting="uniform"),
            *CHAINS[name],
            rounds=4,
            out=tmp_path / name,
            execution=pf.Execution(checkpoint_seconds=0.0),
            callbacks=[kill],
        )
    resumed = train(task, pf.FedAvg(weighting="uniform"), *CHAINS[name], rounds=4, out=tmp_path / name, resume=True)
    assert torch.equal(whole.parameters, resumed.parameters)
    assert epsilons(whole) == epsilons(resumed)


def test_accomplices_are_counted_as_the_statement_words_them():
    assert pf.SecureSum(threshold=0.68, corrupt=0.57, adversary="semi-honest").honest(100) == 68 - 57
    assert pf.SecureSum(threshold=0.58, corrupt=0.57, adversary="semi-honest").honest(100) == 3, "three at least"
    assert pf.SecureSum(threshold=0.58, corrupt=0.57).honest(100) == 79 - 57, "two lists of 78 are possible"
    assert pf.SecureSum(threshold=0.51, corrupt=0.0).honest(3) == 3
    assert pf.SecureSum(threshold=1.0, corrupt=0.4, adversary="active").honest(100) == 60


def test_a_poisson_cohort_is_not_amplified_where_a_given_up_sum_would_betray_its_size():
    plain = ChannelSpec.of((pf.Clip(1.0), pf.GaussianNoise(1.0)), (Field("update"),), None, 0.5)
    secure = ChannelSpec.of((pf.Clip(1.0), IDEAL, pf.GaussianNoise(1.0)), (Field("update"),), None, 0.5)
    pattern = ParticipationPattern(5, 1, 5)
    assert plain.amplified
    assert plain.for_run(100, 10.0, pattern, False).usual.poisson_cohort_releases() != []
    assert not secure.amplified
    assert secure.for_run(100, 10.0, pattern, False).usual.poisson_cohort_releases() == []


def test_where_noise_covers_one_sample_a_large_number_is_clipped_and_its_client_stays(task):
    settings = {
        "privacy": pf.Privacy(
            noise_key=1,
            training=pf.DPSGD(noise_multiplier=5.0, noise_at="server"),
            size=pf.LaplaceSize(epsilon=3.0, bound=400),
            max_size_error=100.0,
        ),
        "rounds": 1,
    }
    run = train(task, pf.FedSampling(samples_per_round=100), pf.SecureSum(largest=1e-4, mode="ideal"), **settings)
    assert run.summary["dropped"] == {}
    with pytest.raises(ConfigError, match="puts no noise on AdaptiveClip's count"):
        train(task, pf.FedSampling(samples_per_round=100), pf.AdaptiveClip(1.0), **settings)


def test_noise_after_a_secure_sum_covers_what_rounding_adds_to_a_clipped_update():
    size, bound = 1_000_000, 0.7
    channel = ChannelSpec.of((pf.Clip(bound), IDEAL, pf.GaussianNoise(1.0)), (Field("update"),))
    channel = channel.for_run(size, 10.0, ParticipationPattern(5, 1, 5), False).in_round(0, 10, {})
    noise = NoiseSource.from_key(5)
    update = torch.randn(size, generator=torch.Generator().manual_seed(1))
    sent = channel.at_client({"update": update}, noise.stream("c"), like=update, broken=False)
    words = channel.secure_encoding.vector(sent, noise.stream("r"), noise.stream("s"))
    opened = channel.secure_encoding.sums(words, 1)["update"]
    assert bound < channel.secure_encoding.lengthening * bound < 1.00002 * bound
    assert float((opened**2).sum() ** 0.5) <= channel.secure_encoding.lengthening * bound


def test_a_ring_too_small_is_refused_before_training_with_the_mend(task):
    with pytest.raises(ConfigError, match=r"32 bits do not hold .* take SecureSum\(bits=64\)"):
        train(
            task, pf.FedAvg(weighting="uniform"), pf.Clip(1.0), pf.DiscreteGaussianNoise(5000.0), pf.SecureSum(bits=32)
        )


@pytest.mark.parametrize(
    ("secure", "says"),
    [
        (pf.SecureSum(bits=32), r"32 bits round uploads of up to ±1\.04858e\+06 from 6 clients to steps of .*bits=64"),
        (pf.SecureSum(largest=1e20), r"64 bits round uploads .* give a smaller SecureSum\(largest=…\)"),
    ],
)
def test_a_sum_too_coarse_for_uploads_that_nothing_clips_is_refused_before_training(task, secure, says):
    with pytest.raises(ConfigError, match=says):
        train(task, pf.FedAvg(), secure)


def test_groups_of_a_rotation_too_small_for_a_sum_are_refused_before_training(task):
    with pytest.raises(ConfigError, match="a secure sum of 2 clients hides nobody"):
        train(task, pf.FedAvg(weighting="uniform"), IDEAL, cohort=pf.Rotation(period=3))


def test_a_round_that_is_given_up_leaves_what_clients_keep(task):
    broken = poison(poison(poison(task, 0), 1), 2)
    chain = pf.SecureSum(threshold=0.6, mode="ideal")
    client_state = [train(one, pf.SuPerFed(start_fraction=0.0), chain, rounds=1).client_state for one in (task, broken)]
    assert len(client_state[0]) == CLIENTS
    assert client_state[1] == {}


def test_adaptive_clipping_estimates_its_quantile_among_the_clients_that_can_be_reached(task):
    """With hardly any noise and everybody within the bound, the bound shrinks although half of the clients are away."""
    clip = pf.AdaptiveClip(1e3, target_quantile=0.8, count_noise=1e-3)
    away = pf.Bernoulli(probability=0.5)
    run = train(task, pf.FedAvg(weighting="uniform"), clip, pf.GaussianNoise(1e-3), rounds=5, availability=away)
    assert float(run.server["clip_norm"]) < 1e3


def test_the_local_reference_has_nothing_to_add_up(task):
    with pytest.raises(ConfigError, match="sends nothing that could be added up"):
        train(task, pf.Local(), IDEAL)


def test_noise_on_a_secure_sum_of_gradients_covers_its_rounding_and_a_coarse_grid_is_refused():
    dpsgd = pf.DPSGD(noise_multiplier=2.0, noise_at="server")
    fields = (Field("update", per_sample_scale=1e-3),)
    size, pattern = 10_000, ParticipationPattern(5, 1, 5)
    fine = ChannelSpec.of((IDEAL,), fields, dpsgd).for_run(size, 10.0, pattern, False).in_round(0, 10, {})
    step = fine.secure_encoding.encoding.step["update"]
    total = fine.at_server({"update": torch.zeros(size, dtype=torch.float64)}, NoiseSource.from_key(1))
    assert float(total["update"].std()) == pytest.approx(2e-3 * (1 + 100 * step / 1e-3), rel=5 / (2 * size) ** 0.5)
    with pytest.raises(ConfigError, match=r"would take .* % more noise; take SecureSum"):
        ChannelSpec.of((pf.SecureSum(bits=32),), fields, dpsgd).for_run(size, 10.0, pattern, False)


def test_a_budget_for_a_cell_that_nothing_protects_is_refused_before_anything_is_written(task, tmp_path):
    privacy = pf.Privacy(noise_key=1, budget=pf.Budget(5.0, unit="client", observer="server"))
    with pytest.raises(ConfigError, match="client/server can never be kept: the server opens the sum"):
        train(
            task,
            pf.FedAvg(weighting="uniform"),
            *(pf.Clip(1.0), PROTOCOL, pf.GaussianNoise(1.0)),
            privacy=privacy,
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_noise_of_clients_is_added_to_numbers_of_any_size(task):
    """The ring follows the clipping bound, so a large bound is not cut off."""
    huge = pf.LocalTraining(learning_rate=3e5, batch_size=20)
    chain = (pf.Clip(1e9), pf.GaussianNoise(1e-12, at="client"))
    plain, secure = (
        train(task, pf.FedAvg(weighting="uniform"), *chain, *more, rounds=1, training=huge) for more in ((), (IDEAL,))
    )
    assert float(plain.parameters.abs().max()) > 2**20 / CLIENTS
    assert torch.allclose(plain.parameters, secure.parameters, rtol=1e-5, atol=1.0)
