"""Whole runs: bad clients, budgets, targets, noise keys, and that no claim is better than the truth."""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.commands.progress import Progress
from privfl.errors import ConfigError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.printed import round_up
from privfl.privacy.accounting.statement import Statement
from privfl.privacy.sizes.responses import SizeResponses
from privfl.simulation.checks import pick_device
from privfl.simulation.run_directory import RunDirectory
from privfl.study.plots import run_charts

CELLS = [(unit, observer) for unit in ("sample", "client") for observer in ("server", "public")]


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.Dirichlet(clients=6, alpha=1.0), model="logistic")


@dataclass(frozen=True)
class Faulty(FedAvg):
    """FedAvg in which the odd rounds break some clients in the way that ``fault`` says."""

    name: ClassVar[str] = "faulty"
    fault: str = "nan"
    weighting: str = "uniform"

    def start(self, parameters):
        return {**super().start(parameters), "round": torch.zeros(())}

    def broadcast(self, server):
        return {**super().broadcast(server), "round": server["round"]}

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        # an upload's own first value decides who breaks, so that some do and some do not
        broken = self.fault.startswith("all") or (float(upload["update"][7]) > 0 and float(received["round"]) % 2 == 1)
        if not broken:
            return upload
        kind = self.fault.removeprefix("all ")
        if kind == "nothing":
            return None
        if kind == "field":
            return {}
        return {"update": upload["update"] * math.nan if kind == "nan" else upload["update"][:-1]}

    def aggregate(self, server, total, round, training):
        return {**super().aggregate(server, total, round, training), "round": server["round"] + 1}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "sent a non-finite 'update'"),
        ("shape", "sent 'update' of shape (649,)"),
        ("field", "sent no 'update'"),
        ("nothing", "sent no 'update'"),
    ],
)
def test_a_client_that_sends_rubbish_is_dropped_counted_and_reported_and_the_round_goes_on(task, fault, reason):
    run = pf.simulate(task, Faulty(fault=fault), rounds=4)
    assert "dropped" not in run.metrics[0]
    lost = sum(line.get("dropped", {}).get(reason, 0) for line in run.metrics)
    assert lost > 0
    assert run.summary["dropped"] == {reason: lost}
    assert all(line["clients"] + sum(line.get("dropped", {}).values()) == 6 for line in run.metrics)
    assert bool(run.parameters.isfinite().all())


def test_when_nobody_sends_anything_usable_the_model_stays_and_the_run_goes_on(task):
    run = pf.simulate(task, Faulty(fault="all nan"), rounds=3)
    start = pf.simulate(task, FedAvg(weighting="uniform"), rounds=1, training=pf.LocalTraining(learning_rate=1e-12))
    torch.testing.assert_close(run.parameters, start.parameters, rtol=0, atol=1e-6)
    assert [line["clients"] for line in run.metrics] == [0, 0, 0]


def test_under_client_noise_a_dropped_client_does_not_change_the_public_divisor(task, common_noise):
    privacy = pf.Privacy(update=[pf.Clip(1e-6), pf.GaussianNoise(1e6)], noise_key=3)
    whole = pf.simulate(task, FedAvg(weighting="uniform"), rounds=1, privacy=privacy)
    gone = pf.simulate(task, Faulty(fault="all nan"), rounds=1, privacy=privacy)
    torch.testing.assert_close(whole.parameters, gone.parameters, rtol=0, atol=1e-4)  # the noise alone decides


def test_evaluation_can_be_rarer_but_always_ends_the_run(task):
    run = pf.simulate(task, FedAvg(), rounds=5, evaluate_every=2)
    assert ["test_accuracy" in line for line in run.metrics] == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("algorithm", "training", "privacy"),
    [
        (
            FedAvg(weighting="uniform"),
            pf.LocalTraining(batch_size=24),
            {"training": pf.DPSGD(target_epsilon=4.0, sample_rate=0.2)},
        ),
        (
            pf.FedSampling(samples_per_round=300),
            pf.LocalTraining(learning_rate=0.5),
            {
                "training": pf.DPSGD(target_epsilon=4.0, noise_at="server"),
                "size": pf.LaplaceSize(epsilon=2, bound=500, lower=100),
            },
        ),
        (
            pf.FedSampling(samples_per_round=300),
            pf.LocalTraining(learning_rate=0.5),
            {"training": pf.DPSGD(target_epsilon=4.0), "size": pf.RandomizedResponse(epsilon=2, bound=500, lower=100)},
        ),
        (
            pf.Centralized(),
            pf.LocalTraining(batch_size=200, steps=2),
            {"training": pf.DPSGD(target_epsilon=4.0, sample_rate=0.15)},
        ),
        (
            pf.ReBaFL(per_sample=True, proto_source="global_only", feature_norm=1.0, weighting="uniform"),
            pf.LocalTraining(batch_size=24),
            {
                "training": pf.DPSGD(target_epsilon=4.0, sample_rate=0.2),
                "statistics": [pf.NoisyTotal(name, 2**0.5, 12.0) for name in ("label_prior", "prototypes")],
            },
        ),
    ],
    ids=[
        "fedavg",
        "fedsampling, noise on the sum",
        "fedsampling, noise at clients",
        "centralized",
        "with noisy totals",
    ],
)
def test_a_target_epsilon_is_nearly_used_up_and_never_exceeded(task, algorithm, training, privacy):
    settings = pf.Privacy(**privacy, max_size_error=50)
    run = pf.simulate(task, algorithm, rounds=6, training=training, privacy=settings, evaluate_every=6)
    assert 0.97 * 4.0 < run.statement.cell("sample", "public").epsilon <= 4.0


def test_a_list_of_targets_gives_each_client_its_own(task):
    targets = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    privacy = pf.Privacy(training=pf.DPSGD(target_epsilon=targets, sample_rate=0.3))
    run = pf.simulate(task, FedAvg(weighting="uniform"), rounds=4, privacy=privacy, evaluate_every=4)
    clients = run.statement.cell("sample", "server").clients
    assert 0.97 * 6 < clients.maximum <= 6.0
    assert clients.worst_client == 5
    assert 0.9 < clients.minimum <= 1.03  # all but the worst may be rounded up


def test_with_random_cohorts_the_target_holds_for_who_takes_part_most(task):
    privacy = pf.Privacy(training=pf.DPSGD(target_epsilon=3.0, sample_rate=0.3))
    run = pf.simulate(
        task,
        FedAvg(weighting="uniform"),
        rounds=9,
        privacy=privacy,
        cohort=pf.FixedCohort(2),
        availability=pf.Bernoulli(0.7),
        evaluate_every=9,
    )
    cell = run.statement.cell("sample", "server")
    assert 0.97 * 3 < cell.epsilon <= 3.0
    assert cell.clients.minimum < 2.5


def test_a_target_needs_rates_that_are_known_before(task):
    privacy = pf.Privacy(
        training=pf.DPSGD(target_epsilon=4.0, noise_at="server"),
        size=pf.LaplaceSize(epsilon=2, bound=500, lower=100, refresh="every_round"),
        max_size_error=50,
    )
    with pytest.raises(ConfigError, match="refresh = 'once'"):
        pf.simulate(task, pf.FedSampling(300), rounds=2, privacy=privacy)


def test_a_target_below_what_the_size_answer_costs_is_refused(task):
    privacy = pf.Privacy(
        training=pf.DPSGD(target_epsilon=1.0, noise_at="server"),
        size=pf.RandomizedResponse(epsilon=2, bound=500, lower=100),
        max_size_error=50,
    )
    with pytest.raises(pf.PrivacyError, match="what is sent besides gradients alone costs"):
        pf.simulate(task, pf.FedSampling(300), rounds=2, privacy=privacy)


def test_a_budget_stops_the_run_before_it_is_exceeded(task):
    def run(rounds, budget=None):
        privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2), budget=budget)
        return pf.simulate(task, FedAvg(weighting="uniform"), rounds=rounds, privacy=privacy, evaluate_every=50)

    stopped = run(30, pf.Budget(5.0))
    assert stopped.summary["stopped"] == "budget"
    rounds = stopped.summary["rounds"]
    assert 0 < rounds < 30
    assert stopped.statement.cell("sample", "public").epsilon <= 5.0
    assert run(rounds + 1).statement.cell("sample", "public").epsilon > 5.0


@pytest.mark.parametrize(
    ("unit", "why"), [("sample", "does not allow a single round"), ("client", "can never be kept")]
)
def test_a_budget_that_allows_no_round_is_refused(task, unit, why):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=0.5, sample_rate=0.5), budget=pf.Budget(0.01, unit))
    with pytest.raises(ConfigError, match=why):
        pf.simulate(task, FedAvg(weighting="uniform"), rounds=2, privacy=privacy)


def test_noise_of_the_operating_system_differs_between_runs_and_a_fixed_key_forbids_release(task):
    def run(key):
        privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0), noise_key=key)
        return pf.simulate(task, FedAvg(weighting="uniform"), rounds=1, privacy=privacy)

    free, again, fixed, repeated = run(None), run(None), run(5), run(5)
    assert not torch.equal(free.parameters, again.parameters)
    assert torch.equal(fixed.parameters, repeated.parameters)
    assert not free.statement.reproducible_noise
    assert fixed.statement.reproducible_noise
    assert "DO NOT RELEASE" in str(fixed.statement)
    assert "DO NOT RELEASE" not in str(free.statement)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": FedAvg(weighting="size")}, "uniform weights"),
        (
            {"algorithm": FedAvg(weighting="uniform"), "cohort": pf.SizeWeightedCohort(2)},
            "does not depend on sizes|uniform weights",
        ),
        ({"algorithm": pf.NaiveFedSampling()}, "this one sends update, answered"),
    ],
)
def test_noise_that_hides_clients_needs_uniform_weights(task, settings, message):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    with pytest.raises(ConfigError, match=message):
        pf.simulate(task, rounds=1, privacy=privacy, **settings)


def test_a_hopeless_size_estimate_is_refused_before_anybody_answers(task):
    with pytest.raises(ConfigError, match="relative standard deviation"):
        pf.simulate(task, pf.FedSampling(300), rounds=1, privacy=pf.Privacy(size=pf.RandomizedResponse(0.1, 500)))


def test_a_client_beyond_the_response_range_is_a_warning(task):
    privacy = pf.Privacy(size=pf.LaplaceSize(epsilon=8, bound=150), max_size_error=50)
    run = pf.simulate(task, pf.FedSampling(300), rounds=1, privacy=privacy)
    assert any("hold more than 150 samples" in warning for warning in run.summary["warnings"])


@pytest.mark.parametrize("refresh", ["once", "every_round", 3])
def test_every_fresh_size_answer_is_charged_also_when_clients_come_and_go(task, refresh, tmp_path):
    seen = {}

    def look(simulation, line):
        meta = RunDirectory(simulation.path).checkpoint().meta
        responses = SizeResponses.from_state(meta["sizes"])
        given = dict(zip(responses._clients.tolist(), responses._given.tolist(), strict=True))
        charged = dict.fromkeys(range(6), 0)
        for clients, history in Ledger.from_state(meta["ledger"]).histories("client", "server"):
            for release, count in history.items():
                if release.name == "size response":
                    charged |= dict.fromkeys(clients.tolist(), count)
        seen[line["round"]] = (given, charged)

    size = pf.LaplaceSize(epsilon=2, bound=500, lower=100, refresh=refresh)
    privacy = pf.Privacy(size=size, max_size_error=50)
    for algorithm in (pf.FedSampling(300), FedAvg(weighting="scheme-2")):
        pf.simulate(
            task,
            algorithm,
            rounds=9,
            privacy=privacy,
            availability=pf.Bernoulli(0.5),
            execution=pf.Execution(checkpoint_seconds=0.0),
            out=tmp_path / algorithm.name,
            callbacks=[look],
        )
        for given, charged in seen.values():
            assert given == charged
        assert (max(seen[8][0].values()) > 1) == (refresh != "once")


def test_a_budget_counts_fresh_size_answers_too(task):
    size = pf.RandomizedResponse(epsilon=2, bound=500, lower=100, refresh="every_round")
    dpsgd = pf.DPSGD(noise_multiplier=50.0, noise_at="server")
    privacy = pf.Privacy(training=dpsgd, size=size, max_size_error=50, budget=pf.Budget(7.0))
    run = pf.simulate(task, pf.FedSampling(300), rounds=20, privacy=privacy)
    assert run.summary["stopped"] == "budget"
    assert 4 < run.statement.cell("sample", "public").epsilon <= 7.0


def test_samples_held_by_several_clients_are_a_caveat():
    partition = pf.Pathological(clients=12, classes_per_client=2, samples_per_client=200)
    shared = pf.load("digits", partition=partition, model="logistic")
    run = pf.simulate(shared, FedAvg(), rounds=1)
    assert any("held by more than one client" in caveat for caveat in run.statement.caveats)


@dataclass(frozen=True)
class Greedy(FedAvg):
    """Takes two gradients of each batch; a second one of the same draw is not what the plan's event covers."""

    name: ClassVar[str] = "greedy"
    weighting: str = "uniform"

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        super().step(local, received, batch, client, training)


def test_an_algorithm_that_takes_more_than_it_declares_is_stopped(task):
    with pytest.raises(ConfigError, match="DP-SGD refuses a second gradient on one batch"):
        pf.simulate(task, Greedy(), rounds=1, privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0)))


def test_an_unknown_device_is_one_sentence():
    with pytest.raises(ConfigError, match="unknown device 'gpu7'"):
        pick_device("gpu7")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            pick_device("cuda")


def test_thread_settings_are_given_back(task):
    before = torch.get_num_threads()
    pf.simulate(task, FedAvg(), rounds=1, execution=pf.Execution(workers=2))
    assert torch.get_num_threads() == before


# No claim is better than the truth: an oracle that derives from first principles which cells may be finite.

DPSGDS = {
    "none": None,
    "client": pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5),
    "server": pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
    "zero": pf.DPSGD(noise_multiplier=0.0, sample_rate=0.5),
}
CHAINS = {
    "none": (),
    "clip": (pf.Clip(1.0),),
    "central": (pf.Clip(1.0), pf.GaussianNoise(1.0)),
    "local": (pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")),
}
SIZES = {
    "exact": None,
    "grr": pf.RandomizedResponse(epsilon=3, bound=500),
    "inf": pf.RandomizedResponse(epsilon=math.inf, bound=500),
}
COHORTS = {"everyone": pf.Everyone(), "poisson": pf.PoissonCohort(0.7), "weighted": pf.SizeWeightedCohort(3)}
FAMILY = {
    "fedavg": FedAvg(),
    "fedavg uniform": FedAvg(weighting="uniform"),
    "fedsampling": pf.FedSampling(300),
    "naive": pf.NaiveFedSampling(),
    "local": pf.Local(),
    "centralized": pf.Centralized(),
}


def may_be_finite(algorithm, dpsgd, chain, size, cohort, unit, observer):
    """First principles. Whoever sees a bare value that depends on the unit's data has ε = ∞."""
    if algorithm == "local":
        asked = cohort == "weighted"
        return not (asked and size in ("exact", "inf"))
    if algorithm == "centralized":
        # one clipped and noised update of everything covers both rows; nothing is hidden from who holds the data
        return observer == "public" and (chain in ("central", "local") or (unit == "sample" and dpsgd == "client"))
    asked = algorithm in ("fedavg", "fedsampling") or cohort == "weighted"
    if asked and size in ("exact", "inf"):
        return False
    hidden = chain == "local" or (chain == "central" and observer == "public")
    if unit == "client":
        return hidden
    return hidden or dpsgd == "client" or (dpsgd == "server" and observer == "public")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", FAMILY)
def test_no_combination_of_settings_claims_more_than_first_principles_allow(task, algorithm):
    ran = 0
    for dpsgd, chain, size, cohort in itertools.product(DPSGDS, CHAINS, SIZES, COHORTS):
        privacy = pf.Privacy(
            training=DPSGDS[dpsgd],
            update=CHAINS[chain],
            size=SIZES[size],
            max_size_error=1e9,
            noise_key=7,  # a Poisson cohort that happens to be empty reveals nothing; with this key none is
        )
        try:
            run = pf.simulate(
                task,
                FAMILY[algorithm],
                rounds=1,
                training=pf.LocalTraining(batch_size=200, steps=1),
                privacy=privacy,
                cohort=COHORTS[cohort],
                evaluate_every=2,
                execution=pf.Execution(engine="loop", workers=1),
            )
        except ConfigError:
            continue
        ran += 1
        for unit, observer in CELLS:
            finite = math.isfinite(run.statement.cell(unit, observer).epsilon)
            expected = may_be_finite(algorithm, dpsgd, chain, size, cohort, unit, observer)
            assert finite == expected, (dpsgd, chain, size, cohort, unit, observer)
    assert ran >= 9


def test_a_run_that_diverges_is_recorded_as_such_and_can_be_reported(task, tmp_path):
    training = pf.LocalTraining(learning_rate=1e38)
    run = pf.simulate(task, pf.FedSampling(300), rounds=6, training=training, out=tmp_path / "run")
    assert run.metrics[-1]["test_loss"] is None
    assert run.metrics[-1]["dropped"] == {"sent a non-finite 'update'": 6}
    pf.write_report(run, tmp_path / "page.html")
    assert "not finite" in (tmp_path / "page.html").read_text(encoding="utf-8")


def private(task, out, *, rounds=40, budget=None, **more):
    dpsgd = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.2)
    privacy = pf.Privacy(training=dpsgd, budget=budget)
    execution = pf.Execution(engine="loop", workers=1, checkpoint_seconds=0.0)
    return pf.simulate(task, FedAvg("uniform"), rounds=rounds, privacy=privacy, out=out, execution=execution, **more)


@pytest.mark.parametrize("budget", [None, pf.Budget(5.0)], ids=["finished", "budget"])
def test_a_run_has_one_epsilon_the_statements(task, tmp_path, budget):
    """In the last line, the checkpoint and the returned metrics; the lines before it are upper bounds."""
    seen = []
    run = private(task, tmp_path, budget=budget, callbacks=[lambda simulation, line: seen.append(dict(line))])
    claimed = {f"{cell.unit}/{cell.observer}": cell.epsilon for cell in run.statement.cells}
    finite = {name: epsilon for name, epsilon in claimed.items() if epsilon < float("inf")}
    assert run.metrics[-1]["epsilon"] == finite
    assert finite
    assert (len(run.metrics) < 40) == (budget is not None)
    if budget is None:
        assert seen[-1] == run.metrics[-1]
    else:
        assert seen[-1]["epsilon"]["sample/public"] > finite["sample/public"]  # nobody knew yet
    stored = RunDirectory(tmp_path)
    assert stored.metrics() == run.metrics == stored.checkpoint().meta["metrics"]
    assert all(line["epsilon"]["sample/public"] <= seen[i]["epsilon"]["sample/public"] for i, line in enumerate(seen))
    assert Statement.from_json((tmp_path / "statement.json").read_text()).finite() == finite


def test_beyond_a_hundred_rounds_a_resumed_run_says_the_same_upper_bounds(task, tmp_path):
    class Killed(Exception):
        pass

    def kill(simulation, line):
        if line["round"] in (37, 75):
            raise Killed

    private(task, tmp_path / "whole", rounds=110, evaluate_every=110)
    for resume in (False, True):
        with pytest.raises(Killed):
            private(task, tmp_path / "killed", rounds=110, evaluate_every=110, callbacks=[kill], resume=resume)
    private(task, tmp_path / "killed", rounds=110, evaluate_every=110, resume=True)
    whole, killed = (RunDirectory(tmp_path / name).metrics() for name in ("whole", "killed"))
    assert [line["epsilon"] for line in killed] == [line["epsilon"] for line in whole]


def test_progress_marks_what_is_an_upper_bound_and_ends_with_the_statements_epsilon(task, tmp_path, capsys):
    for budget in (None, pf.Budget(5.0)):
        with Progress(40) as progress:
            run = private(task, tmp_path / str(budget), budget=budget, callbacks=[progress.update])
            progress.conclude(run)
        told = capsys.readouterr().err.splitlines()
        exact = round_up(run.statement.cell("sample", "public").epsilon)
        assert told[-1].endswith(f"ε = {exact} (sample/server)")
        assert all("upper bound" in line for line in told[:-1])
        assert "upper bound" not in told[-1]


def test_the_curve_of_epsilon_ends_at_the_statement_and_never_above(task, tmp_path):
    run = private(task, tmp_path, budget=pf.Budget(5.0))
    line = run_charts(run.metrics)["epsilon"].axes[0].lines[0]
    heights = list(line.get_ydata())
    assert heights[-1] == max(heights) == run.metrics[-1]["epsilon"][line.get_label()]


def test_to_go_on_with_a_run_in_no_folder_is_refused():
    task = pf.load("digits", partition=pf.IID(clients=2), model="logistic")
    with pytest.raises(ConfigError, match="resume is True and out is None; give out=, the folder of the run"):
        pf.simulate(task, pf.FedAvg(), rounds=1, resume=True)
