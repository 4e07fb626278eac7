"""A property of the inputs that no label mentions shows in updates, and a property without trace does not."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.property_inference import PropertyInference, dark, fit, simulated_updates
from privfl.errors import ConfigError
from privfl.privacy.door.batch_plans import LocalTraining
from tests.attacks.labelled_batches import batch, drawn_labels, halves, untrained

DATA = halves()
TRAINING = LocalTraining(learning_rate=0.05, batch_size=10, epochs=1)


def darkened(inputs):
    """The property: the sensor is half as sensitive."""
    return 0.5 * inputs


def clients(network, altered, count, seed):
    """Updates of ``count`` private clients of 20 examples each, with or without the property."""
    updates = []
    for number in range(count):
        inputs, targets = batch(drawn_labels(20, seed + number), DATA.private, seed + number)
        inputs = darkened(inputs) if altered else inputs
        updates.append(
            simulated_updates(
                network, inputs, targets, TRAINING, size=20, count=1, generator=torch.Generator().manual_seed(number)
            )[0]
        )
    return torch.stack(updates)


def auc(network, altered, without):
    generator = torch.Generator().manual_seed(5)
    training = [
        simulated_updates(network, inputs, DATA.public[1], TRAINING, size=20, count=40, generator=generator)
        for inputs in (altered(DATA.public[0]), DATA.public[0])
    ]
    classifier = fit(*training)
    scores = torch.cat([classifier.scores(part) for part in without])
    return roc_auc_score([1] * len(without[0]) + [0] * len(without[1]), scores.numpy())


def test_a_darker_sensor_is_recognised_by_the_update():
    network = untrained(0)
    assert auc(network, darkened, (clients(network, True, 20, 0), clients(network, False, 20, 100))) > 0.95


def test_no_property_gives_no_signal():
    """Both groups alike: 40 against 40 scores; the false-alarm rate of |AUC − ½| > 0.31 is 1e-6 (5 s.e. of 0.065)."""
    network = untrained(0)
    groups = (clients(network, False, 40, 200), clients(network, False, 40, 300))
    assert abs(auc(network, lambda inputs: inputs, groups) - 0.5) < 0.33


def test_the_reduced_fit_is_logistic_regression_on_the_whole_update():
    """Against scikit-learn on all coordinates, at the same penalty."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 60, generator=generator, dtype=torch.float64)
    rows[:20, :3] += 1.0
    found = fit(rows[:20], rows[20:])
    centred = rows - rows.mean(0)
    centred /= centred.square().sum(1).mean().sqrt()
    model = LogisticRegression(C=100, max_iter=5000, tol=1e-10)
    model.fit(centred.numpy(), [1] * 20 + [0] * 20)
    assert found.scores(rows).numpy() == pytest.approx(model.decision_function(centred.numpy()), abs=1e-2)


def test_the_server_of_a_run_learns_which_clients_have_dark_images():
    """Sixteen clients of 40 digits, half of whom hold images below the median brightness only."""
    inputs, targets = DATA.private
    darker = dark(Records(inputs, targets))
    parts = [rows[:320].view(8, 40) for rows in (darker.nonzero().flatten(), (~darker).nonzero().flatten())]
    rows = torch.cat(parts).flatten()
    owners = torch.arange(16).repeat_interleave(40).numpy()
    public = tuple(part.numpy() for part in DATA.public)
    task = pf.Task.from_arrays(inputs[rows].numpy(), targets[rows].numpy(), clients=owners, test=public, model="two-nn")
    run = pf.simulate(task, pf.FedAvg(), rounds=1, training=TRAINING, record=True, execution=pf.Execution(workers=1))
    held = torch.arange(16) < 8
    auxiliary = Auxiliary(public=Records(*DATA.public), truth={"property": held})
    result = PropertyInference(size=40, simulated=30).run(run.transcript, auxiliary)
    assert result.metrics["auc"].value > 0.8
    assert result.nulls["chance"]["auc"].value == 0.5
    own = PropertyInference(holds=dark, size=40, simulated=30).run(run.transcript, auxiliary)
    assert own.metrics == result.metrics
    assert own.to_json()["settings"]["holds"] == "dark"
    fewer = Auxiliary(public=Records(*DATA.public), truth={"property": held[:3]})
    with pytest.raises(ConfigError, match="speaks of 3 clients"):
        PropertyInference(size=4, simulated=3).run(run.transcript, fewer)
    with pytest.raises(ConfigError, match="agree on the property"):
        PropertyInference(holds=lambda records: records.targets >= 0).run(run.transcript, auxiliary)


def test_what_does_not_train_by_plain_cross_entropy_is_refused():
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    run = pf.simulate(task, pf.BalancedFedAvg(), rounds=1, record=True, execution=pf.Execution(workers=1))
    with pytest.raises(ConfigError, match="bsm-fedavg"):
        PropertyInference().run(run.transcript, Auxiliary(public=Records(*DATA.public)))
    with pytest.raises(ConfigError, match="bright"):
        PropertyInference(holds="bright")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: fit(torch.zeros(0, 3), torch.zeros(2, 3)), "at least one of each"),
        (lambda: fit(torch.zeros(2, 3), torch.zeros(2, 3)), "equal"),
        (lambda: fit(torch.full((2, 3), torch.nan), torch.zeros(2, 3)), "finite"),
        (lambda: fit(torch.zeros(1, 3), torch.ones(1, 3), penalty=0), "penalty"),
        (
            lambda: simulated_updates(
                untrained(0), torch.zeros(0, 64), torch.zeros(0), TRAINING, size=3, count=1, generator=torch.Generator()
            ),
            "0 inputs",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()
