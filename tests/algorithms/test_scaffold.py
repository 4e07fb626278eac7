"""SCAFFOLD: part B of the baselines' specification, and rows 1 to 4 of its test matrix."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.algorithms.declarations import declared
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.privacy.accounting.release import BARE_TRAINING
from privfl.privacy.door.contract import Batch
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, full_gradient, initial, task_of, uploads
from tests.algorithms.test_baselines import quadratic_task

SIZES = (7, 20, 13, 9)
PLAIN = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2)
HEAVY = replace(PLAIN, momentum=0.5, weight_decay=0.01, learning_rate_decay=0.8)
SGD_OF_FEW = pf.LocalTraining(learning_rate=0.2, batch_size=3, steps=2)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def batches(task, client, training, round):
    """The rows of each of a client's steps: its data, shuffled anew in every epoch."""
    order = torch_stream(0, "batches", round, client)
    rows = task.clients[client]
    for _ in range(training.epochs):
        yield from rows[torch.randperm(len(rows), generator=order)].split(training.batch_size)


def mean_gradient(task, parameters, rows):
    return full_gradient(task, parameters, rows) / len(rows)


def two_of_four(round):
    return pf.FixedCohort(2).draw(np.arange(4), round, 0, None, np.ones(4)).clients.tolist()


def twin(task, rounds, training, *, option="II", weighting="uniform", server_learning_rate=1.0):
    """SCAFFOLD by explicit loops, with the closed form of option II where local steps are plain SGD."""
    sizes = task.clients.sizes
    omegas = sizes / sizes.mean() if weighting == "size" else np.ones(len(sizes))
    w = initial(task)
    c, controls = torch.zeros_like(w), {client: torch.zeros_like(w) for client in range(len(sizes))}
    for round in range(rounds):
        rate = training.learning_rate * training.learning_rate_decay**round
        updates, changes = [], []
        for k in two_of_four(round):
            v, velocity, gradients, common = w, torch.zeros_like(w), [], c / omegas[k]
            for rows in batches(task, k, training, round):
                gradients.append(mean_gradient(task, v, rows))
                direction = gradients[-1] - controls[k] + common + training.weight_decay * v
                velocity = training.momentum * velocity + direction
                v = v - rate * velocity
            if option == "I":
                control = mean_gradient(task, w, task.clients[k])
            elif training is PLAIN:
                control = controls[k] - common + (w - v) / (len(gradients) * rate)
            else:
                control = torch.stack(gradients).mean(0)
            updates.append(v - w)
            changes.append(omegas[k] * (control - controls[k]))
            controls[k] = control
        w = w + server_learning_rate * torch.stack(updates).mean(0)
        c = c + torch.stack(changes).sum(0) / len(sizes)
    return w, c, controls


@pytest.mark.parametrize(
    ("settings", "training"),
    [
        ({}, PLAIN),
        ({"option": "I", "server_learning_rate": 0.7}, PLAIN),
        ({}, HEAVY),
        ({"option": "I"}, HEAVY),
        ({"weighting": "size"}, PLAIN),
    ],
    ids=["II", "I", "II with momentum, decay and weight decay", "I with momentum", "weighted by size"],
)
def test_rounds_of_a_part_of_the_federation_are_the_papers(task, settings, training):
    algorithm = pf.Scaffold(**settings)
    run = pf.simulate(
        task,
        algorithm,
        rounds=4,
        training=training,
        cohort=pf.FixedCohort(2),
        evaluate_every=4,
        execution=pf.Execution(engine="loop"),
    )
    w, c, controls = twin(task, 4, training, **settings)
    scale = task.clients.sizes.mean() if algorithm.weighs == "size" else 1.0  # ours has no constant N/n
    torch.testing.assert_close(run.parameters, w, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.server["control"], c * scale, rtol=0, atol=1e-11)
    for client, client_state in run.client_state.items():
        torch.testing.assert_close(client_state["control"], controls[client], rtol=0, atol=1e-11)
    assert len(run.client_state) > 2  # some came late, some came again


def test_stacked_clients_take_the_same_rounds(task):
    runs = [
        pf.simulate(
            task,
            pf.Scaffold(weighting="size"),
            rounds=3,
            training=HEAVY,
            execution=pf.Execution(engine=engine),
            evaluate_every=3,
        )
        for engine in ("loop", "vectorised")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-11)
    torch.testing.assert_close(runs[0].server["control"], runs[1].server["control"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("cohort", [pf.Everyone(), pf.SizeWeightedCohort(4)], ids=["everyone", "one drawn twice"])
def test_the_first_round_has_no_correction_and_is_that_of_uniform_fedavg(task, cohort):
    for training, clients in ((PLAIN, task), (HEAVY, task), (PLAIN, one_bad_row(task))):
        scaffold, fedavg = (
            pf.simulate(clients, algorithm, rounds=1, training=training, cohort=cohort)
            for algorithm in (pf.Scaffold(), pf.FedAvg("uniform"))
        )
        torch.testing.assert_close(scaffold.parameters, fedavg.parameters, rtol=0, atol=1e-14)
        assert scaffold.metrics[0]["clients"] < 4 or (clients is task and cohort == pf.Everyone())


def test_with_one_full_step_each_the_corrections_cancel(task):
    training = pf.LocalTraining(learning_rate=0.4, batch_size=100)
    scaffold, fedavg = (
        pf.simulate(task, algorithm, rounds=4, training=training) for algorithm in (pf.Scaffold(), pf.FedAvg("uniform"))
    )
    torch.testing.assert_close(scaffold.parameters, fedavg.parameters, rtol=0, atol=1e-13)


@pytest.mark.parametrize("option", ["I", "II"])
def test_identical_clients_with_exact_gradients_take_fedavgs_path(option):
    base = digits_task([10])
    same = task_of(base.inputs.repeat(3, 1), base.targets.repeat(3), (10, 10, 10))
    training = pf.LocalTraining(learning_rate=0.3, batch_size=10, epochs=3)
    scaffold, fedavg = (
        pf.simulate(same, algorithm, rounds=3, training=training)
        for algorithm in (pf.Scaffold(option=option), pf.FedAvg("uniform"))
    )
    torch.testing.assert_close(scaffold.parameters, fedavg.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "clients", "cohort", "rounds"),
    [
        (pf.Scaffold(), 4, None, 30),
        (pf.Scaffold(option="I"), 4, None, 30),
        (pf.Scaffold(), 8, pf.FixedCohort(4), 80),
    ],
    ids=["option II", "option I", "4 of 8"],
)
def test_on_quadratics_it_finds_the_optimum(algorithm, clients, cohort, rounds):
    task, optimum = quadratic_task(clients=clients)
    training = pf.LocalTraining(learning_rate=0.2, epochs=3)
    found = pf.simulate(
        task,
        algorithm,
        rounds=rounds,
        training=training,
        cohort=cohort,
        evaluate_every=rounds,
        execution=pf.Execution(engine="loop"),
    )
    assert float((found.parameters - optimum).norm()) < 1e-8


def test_on_quadratics_fedavg_misses_the_optimum():
    task, optimum = quadratic_task()
    training = pf.LocalTraining(learning_rate=0.2, epochs=3)
    run = pf.simulate(
        task,
        pf.FedAvg("uniform"),
        rounds=30,
        training=training,
        evaluate_every=30,
        execution=pf.Execution(engine="loop"),
    )
    assert float((run.parameters - optimum).norm()) > 1e-2


@pytest.mark.parametrize(("option", "steps", "ends"), [("I", 3, True), ("I", 10, False), ("II", 10, True)])
def test_with_many_steps_on_unlike_curvatures_option_one_diverges_and_two_does_not(option, steps, ends):
    """F_k = ½·A_k·‖w − a_k‖² with A = 0.1 and 1.9, a = 1 and −1: the optimum is −0.9."""
    task, _ = quadratic_task(clients=2)
    rows = [torch.cat([torch.full((3,), a), A * torch.eye(3).flatten()]) for a, A in ((1.0, 0.1), (-1.0, 1.9))]
    task = replace(task, inputs=torch.stack(rows).double())
    training = pf.LocalTraining(learning_rate=0.5, epochs=steps)
    run = pf.simulate(
        task,
        pf.Scaffold(option),
        rounds=40,
        training=training,
        evaluate_every=40,
        execution=pf.Execution(engine="loop"),
    )
    assert float((run.parameters + 0.9).abs().max()) < 1e-6 if ends else float(run.parameters.abs().max()) > 100


def test_a_subclass_keeps_what_it_overrides_with_either_option(task):
    class Still(pf.Scaffold):
        def add_data_independent_gradient(self, gradient, local, received):
            gradient.zero_()

    for option in ("I", "II"):
        run = pf.simulate(task, Still(option), rounds=1, training=PLAIN)
        assert torch.equal(run.parameters, initial(task))


def unequal_quadratics():
    """Quadratic clients that hold 1 to 4 copies of their one sample, and the optimum of Σ n_k·F_k."""
    task, _ = quadratic_task()
    sizes = np.array([4, 1, 3, 2])
    index = ClientIndex.of([np.repeat(client, size) for client, size in enumerate(sizes)])
    inputs = task.inputs.numpy()
    curvatures = inputs[:, 3:].reshape(-1, 3, 3) * sizes[:, None, None]
    optimum = np.linalg.solve(curvatures.sum(0), np.einsum("kij,kj->i", curvatures, inputs[:, :3]))
    return replace(task, clients=index), torch.from_numpy(optimum)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_with_unequal_sizes_only_the_weighted_form_finds_the_weighted_optimum(weighting):
    task, optimum = unequal_quadratics()
    training = pf.LocalTraining(learning_rate=0.2, batch_size=10, epochs=3)
    algorithm = pf.Scaffold(weighting=weighting)
    run = pf.simulate(
        task, algorithm, rounds=35, training=training, evaluate_every=35, execution=pf.Execution(engine="loop")
    )
    distance = float((run.parameters - optimum).norm())
    assert distance < 1e-8 if weighting == "size" else distance > 1e-2


@dataclass
class Invariant:
    """Checks after every round that the server's tensor is the mean of all clients', who have 0 until they keep any."""

    name: str
    tolerance: float
    weights: tuple[float, ...] = (1.0,) * len(SIZES)
    moved: list = field(default_factory=list)

    def __call__(self, simulation, line):
        ours = simulation.server[self.name]
        theirs = sum(
            self.weights[client] * client_state[self.name] for client, client_state in simulation.client_state.items()
        )
        mean = theirs / len(simulation.task.clients) if simulation.client_state else torch.zeros_like(ours)
        torch.testing.assert_close(ours, mean, rtol=0, atol=self.tolerance)
        self.moved.append(float(ours.norm()))


def one_bad_row(task):
    """The same task, but client 1's first row is infinite: rounds that meet it are lost for this client."""
    inputs = task.inputs.clone()
    inputs[task.clients[1][0]] = torch.inf
    return replace(task, inputs=inputs)


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [(pf.Scaffold(), (1.0,) * 4), (pf.Scaffold(weighting="size"), SIZES)],
    ids=["c_k", "n_k c_k"],
)
def test_the_servers_control_is_the_mean_of_all_clients_whoever_drops_out_when(task, algorithm, weights, tmp_path):
    settings = {
        "rounds": 24,
        "training": SGD_OF_FEW,
        "cohort": pf.FixedCohort(2),
        "availability": pf.Bernoulli(0.7),
        "evaluate_every": 24,
        "execution": pf.Execution(engine="loop", checkpoint_seconds=0),
    }
    check = Invariant("control", 1e-12, weights)

    def killed(simulation, line):
        if line["round"] == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pf.simulate(one_bad_row(task), algorithm, out=tmp_path, callbacks=(check, killed), **settings)
    resumed = pf.simulate(one_bad_row(task), algorithm, out=tmp_path, resume=True, callbacks=(check,), **settings)
    whole = pf.simulate(one_bad_row(task), algorithm, **settings)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert len(check.moved) == 24
    assert min(check.moved) > 0
    assert sum(resumed.summary["dropped"].values()) >= 2  # lost after training
    assert 1 in resumed.client_state  # and at other times not


def test_a_client_that_is_drawn_twice_moves_the_servers_control_once(task):
    check = Invariant("control", 1e-12)
    run = pf.simulate(
        task, pf.Scaffold(), rounds=6, training=SGD_OF_FEW, cohort=pf.SizeWeightedCohort(4), callbacks=(check,)
    )
    assert any(line["clients"] < 4 for line in run.metrics)


def test_under_secure_sums_the_servers_control_is_the_mean_up_to_the_grid(task):
    check = Invariant("control", 1e-9)
    private = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    runs = [
        pf.simulate(task, pf.Scaffold(), rounds=3, training=PLAIN, privacy=privacy, callbacks=(check,))
        for privacy in (private, pf.Privacy())
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-9)


def test_a_secure_sum_that_is_given_up_leaves_every_control_as_it_was(task):
    privacy = pf.Privacy(update=[pf.SecureSum(mode="ideal", largest=0.1)])
    run = pf.simulate(task, pf.Scaffold(), rounds=2, training=PLAIN, privacy=privacy)
    assert run.client_state == {}
    assert not run.server["control"].any()
    assert torch.equal(run.parameters, initial(task))


def test_permuting_clients_changes_nothing_but_rounding(task):
    permuted = replace(task, clients=ClientIndex.of([task.clients[client].numpy() for client in (2, 0, 3, 1)]))
    training = pf.LocalTraining(learning_rate=0.2, batch_size=100, epochs=2)
    runs = [pf.simulate(one, pf.Scaffold(), rounds=3, training=training) for one in (task, permuted)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_a_round_sends_two_models_either_way(task):
    algorithm = pf.Scaffold()
    received = algorithm.broadcast(algorithm.start(initial(task)))
    assert {name: value.numel() for name, value in received.items()} == {"parameters": 650, "control": 650}
    for result in uploads(task, algorithm, received):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": 650, "control": 650}
    assert declared(algorithm)["sends"] == "update (sum), control (sum)"
    assert declared(algorithm)["secure sums"] == "yes"


class Taped:
    """A client's door that keeps what it gave, or one without data that gives what was kept."""

    def __init__(self, door, tape):
        self.door, self.tape, self.loss = door, tape, None if door is None else door.loss

    def gradient(self, loss, parameters, batch):
        if self.door is None:
            return self.tape.pop(0).clone()
        self.tape.append(self.door.gradient(loss, parameters, batch).clone())
        return self.tape[-1].clone()


def replayed(algorithm, received, tape, training):
    """What a client sends and keeps, computed from the noisy gradients of ``tape`` and from public values alone."""
    local = algorithm.begin(received, {}, training)
    local["parameters"] = local["parameters"].clone()
    nothing, door = torch.empty(0), Taped(None, list(tape))
    batch = Batch(lambda: pytest.fail("a batch was counted"), nothing, nothing, nothing)
    for _ in tape:
        algorithm.step(local, received, batch, door, training)
    return algorithm.finish(local, received, training), {name: local[name] for name in algorithm.keeps}


@dataclass(frozen=True)
class Watched(pf.Scaffold):
    tape: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, Taped(client, self.tape), training)


def test_under_dp_sgd_both_fields_and_the_kept_control_are_functions_of_the_noisy_gradients(task):
    watched, training = Watched(), replace(HEAVY, steps=5)
    received = {"parameters": initial(task), "control": torch.full_like(initial(task), 0.1)}
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)
    (result,) = uploads(task, watched, received, training=training, dpsgd=dpsgd, clients=[2])
    assert len(watched.tape) == sum(result.log.noisy.values()) == 5
    assert not result.log.bare
    sent, client_state = replayed(pf.Scaffold(), received, watched.tape, training)
    assert sent.keys() == result.upload.keys()
    assert all(torch.equal(sent[name], value) for name, value in result.upload.items())
    assert torch.equal(client_state["control"], result.client_state["control"])
    torch.testing.assert_close(client_state["control"], torch.stack(watched.tape).mean(0), rtol=0, atol=1e-14)


def test_dp_sgd_claims_for_it_what_it_claims_for_uniform_fedavg(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    training = pf.LocalTraining(batch_size=5, steps=3)
    ours, theirs = (
        pf.simulate(task, algorithm, rounds=3, training=training, privacy=privacy, cohort=pf.FixedCohort(2)).statement
        for algorithm in (pf.Scaffold(), pf.FedAvg("uniform"))
    )
    for observer in ("server", "public"):
        assert 0 < ours.cell("sample", observer).epsilon == theirs.cell("sample", observer).epsilon < np.inf


@pytest.mark.parametrize("settings", [{}, {"option": "I"}, {"weighting": "size"}])
def test_without_a_mechanism_nothing_is_claimed(task, settings):
    statement = pf.simulate(task, pf.Scaffold(**settings), rounds=1, training=PLAIN).statement
    for observer in ("server", "public"):
        assert statement.cell("sample", observer).epsilon == np.inf
        assert BARE_TRAINING in " ".join(statement.cell("sample", observer).reasons)
        assert statement.cell("client", observer).epsilon == np.inf


@pytest.mark.parametrize(
    ("settings", "privacy", "message"),
    [
        ({"option": "I"}, pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2)), "use option = 'II'"),
        ({"weighting": "size"}, pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2)), "exact sizes"),
        ({}, pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)]), "this one sends update, control"),
    ],
    ids=["a gradient of all rows", "exact sizes", "noise for one field"],
)
def test_what_a_mechanism_would_not_cover_is_refused(task, settings, privacy, message):
    with pytest.raises(ConfigError, match=message):
        pf.simulate(task, pf.Scaffold(**settings), rounds=1, privacy=privacy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"option": "III"}, "scaffold's option"),
        ({"weighting": "scheme-2"}, "scaffold's weighting"),
        ({"server_learning_rate": 0.0}, "scaffold's server_learning_rate is 0.0"),
        ({"server_learning_rate": float("nan")}, "scaffold's server_learning_rate is nan"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.Scaffold(**settings)
