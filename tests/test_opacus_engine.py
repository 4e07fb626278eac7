"""A call with Opacus' arguments becomes a federation whose examples cost what they cost with Opacus."""

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privfl as pf
from privfl.errors import ConfigError

EXECUTION = pf.Execution(engine="loop", workers=1, device="cpu")


def parts(model=None, optimizer=torch.optim.SGD, **settings):
    """Module, optimizer and loader over 160 rows of digits, in ten batches."""
    torch.manual_seed(0)
    task = pf.load("digits", partition=pf.IID(clients=2))
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    rows = TensorDataset(task.inputs[:160], task.targets[:160])
    settings = {"lr": 0.5} | settings
    return {
        "module": model,
        "optimizer": optimizer(model.parameters(), **settings),
        "data_loader": DataLoader(rows, batch_size=16, shuffle=True),
        "max_grad_norm": 1.0,
    }


def test_an_epoch_of_opacus_and_a_round_of_the_federation_have_the_same_history():
    given = parts()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(**parts(), noise_multiplier=1.3)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    federation = pf.make_private(**given, noise_multiplier=1.3, partition=pf.IID(clients=4))
    run = federation.simulate(rounds=1, execution=EXECUTION)
    assert pf.opacus_history(run.ledger, observer="server") == engine.accountant.history == [(1.3, 0.1, 10)]
    for observer in ("server", "public"):
        assert abs(run.statement.cell("sample", observer).epsilon - engine.get_epsilon(1e-5)) < 0.02


def test_the_federation_starts_from_the_model_that_was_handed_over():
    given = parts(momentum=0.5, weight_decay=0.1)
    before = [one.detach().clone() for one in given["module"].parameters()]
    federation = pf.make_private(**given, noise_multiplier=1.0, partition=pf.IID(clients=4))
    assert federation.training == pf.LocalTraining(learning_rate=0.5, batch_size=4, momentum=0.5, weight_decay=0.1)
    assert federation.privacy.training == pf.DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, federation.task.model(3).parameters(), strict=True))
    federation.simulate(rounds=1, execution=EXECUTION)
    assert all(torch.equal(a, b) for a, b in zip(before, given["module"].parameters(), strict=True))


def test_a_target_is_kept_over_as_many_rounds_as_epochs():
    federation = pf.make_private_with_epsilon(
        **parts(), target_epsilon=4.0, target_delta=1e-4, epochs=2, clients=[row % 4 for row in range(160)]
    )
    run = federation.simulate(execution=EXECUTION)
    cell = run.statement.cell("sample", "server")
    assert run.statement.delta == 1e-4
    assert 3.9 < cell.epsilon <= 4.0
    ((noise_multiplier, rate, steps),) = pf.opacus_history(run.ledger, observer="server")
    assert (rate, steps) == (0.1, 20)
    engine = PrivacyEngine()
    _, optimizer, _ = engine.make_private_with_epsilon(**parts(), target_epsilon=4.0, target_delta=1e-4, epochs=2)
    assert noise_multiplier == pytest.approx(optimizer.noise_multiplier, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"poisson_sampling": False}, "poisson_sampling is False"),
        ({"clipping": "per_layer"}, "clipping is 'per_layer'"),
        ({"max_grad_norm": [1.0, 1.0]}, "a norm for each layer"),
        ({"loss_reduction": "sum"}, "loss_reduction is 'sum'"),
        ({"batch_first": False}, "batch_first is False"),
        ({"noise_generator": torch.Generator()}, "noise_generator is given"),
        ({"grad_sample_mode": "fast"}, "grad_sample_mode is 'fast'"),
        ({"partition": None}, "nobody says who holds which row"),
        ({"data_loader": [1]}, "give a torch DataLoader"),
        ({"criterion": nn.NLLLoss()}, "criterion is .*NLLLoss"),
        ({"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)}, "label_smoothing = 0.1"),
        ({"criterion": nn.CrossEntropyLoss(weight=torch.ones(10))}, "criterion has a weight"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
        (parts(optimizer=torch.optim.Adam, lr=0.1), "optimizer is Adam"),
        (parts(nesterov=True, momentum=0.5), "nesterov = True"),
        ({"module": nn.Linear(64, 10)}, "other parameters than module"),
    ],
)
def test_what_has_no_meaning_in_a_federation_is_refused(changes, sentence):
    given = {**parts(), "noise_multiplier": 1.0, "partition": pf.IID(clients=4)} | changes
    with pytest.raises(ConfigError, match=sentence):
        pf.make_private(**given)


def test_rounds_are_asked_for_where_nothing_decides_them():
    federation = pf.make_private(**parts(), noise_multiplier=1.0, partition=pf.IID(clients=4))
    with pytest.raises(ConfigError, match="rounds is missing"):
        federation.simulate()
