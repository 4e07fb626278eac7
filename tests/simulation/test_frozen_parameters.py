"""What is frozen when a model is built never moves, is in no message, and gets no noise."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privfl as pf
from privfl.models import Network

X = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
PRETRAINED = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).requires_grad_(False)
FEATURES = PRETRAINED(torch.from_numpy(X)).numpy()
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5))
KINDS = {
    "nothing": pf.Privacy(),
    "dp-sgd": DPSGD,
    "update noise": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0))),
    "a secure sum": pf.Privacy(update=(pf.Clip(1.0), pf.DiscreteGaussianNoise(1.0), pf.SecureSum(mode="ideal"))),
}


class Head(nn.Module):
    """A head alone, on features."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs):
        return self.head(inputs)


class FineTuned(Head):
    """The same head on a body that makes the features and is frozen."""

    def __init__(self):
        super().__init__()
        self.body = copy.deepcopy(PRETRAINED)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class Drawn(Head):
    """On a frozen body that is drawn when the model is built, of the same kind as the layer behind it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5).requires_grad_(False)

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))


def task(model, inputs=X, **own):
    return pf.Task.from_arrays(inputs, Y, test=(inputs, Y), clients=np.arange(80) % 4, classes=2, model=model, **own)


def ran(model, privacy, inputs=X, engine="loop", algorithm=None, momentum=0.5, **own):
    return pf.simulate(
        task(model, inputs),
        algorithm or pf.FedAvg("uniform"),
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.5, batch_size=10, momentum=momentum, weight_decay=0.1),
        privacy=privacy,
        execution=pf.Execution(engine=engine, workers=1),
        **own,
    )


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_body_is_what_features_computed_beforehand_are(kind, engine):
    whole, alone = ran(FineTuned, KINDS[kind], engine=engine), ran(Head, KINDS[kind], FEATURES, engine=engine)
    assert whole.parameters.shape == alone.parameters.shape == (12,)
    cells = [(unit, observer) for unit in ("sample", "client") for observer in ("server", "public")]
    assert [whole.statement.cell(*cell).epsilon for cell in cells] == [
        alone.statement.cell(*cell).epsilon for cell in cells
    ]
    if kind == "nothing":
        torch.testing.assert_close(whole.parameters, alone.parameters, rtol=1e-4, atol=1e-5)


def in_sequence():
    """The same of layers that PyTorch runs one after another, which Opacus' hooks serve."""
    return nn.Sequential(*copy.deepcopy(PRETRAINED), Head().head)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("way", ["vmap", "auto", "opacus", "layers"])
def test_every_way_of_forming_gradients_agrees(way, engine):
    def trained(model, inputs, way, engine):
        dpsgd = pf.DPSGD(noise_multiplier=1e-6, sample_rate=1.0, max_grad_norm=0.1, per_sample=way)
        return ran(model, pf.Privacy(training=dpsgd), inputs, engine=engine).parameters

    if way == "opacus" and engine == "vectorised":
        pytest.skip("Opacus' hooks serve the loop alone")
    expected = trained(Head, FEATURES, "auto", "loop")
    for model in (in_sequence,) if way == "opacus" else (in_sequence, FineTuned):
        torch.testing.assert_close(trained(model, X, way, engine), expected, rtol=1e-3, atol=1e-4)


def test_a_body_that_is_drawn_is_the_same_at_every_seed_and_in_every_algorithm():
    own = task(Drawn)
    one, other = own.model(0), own.model(5)
    assert torch.equal(one.body.weight, other.body.weight)
    context = own.context(1, 5)
    assert torch.equal(context.network().body.weight, one.body.weight)
    assert context.layout.names == ("head.weight", "head.bias")
    assert context.fresh("a stream", 3).shape == (12,)
    for seed in (0, 5):
        run, network = ran(Drawn, KINDS["nothing"], seed=seed), own.model(3)
        nn.utils.vector_to_parameters(run.parameters, network.head.parameters())
        right = network(torch.from_numpy(X)).argmax(1).numpy() == Y
        assert run.summary["test_accuracy"] == pytest.approx(right.mean())


class Parts(Network):
    """A body and a head, of which the first layer is frozen."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh()), nn.Linear(5, 2), 5)
        self.body[0].requires_grad_(False)


ALGORITHMS = (pf.Scaffold, pf.Ditto, pf.MOON, pf.FedRep, pf.FedBABU, pf.GRPFed, pf.SuPerFed, pf.PerFedAvg, pf.APFL)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=[one.name for one in ALGORITHMS])
def test_algorithms_train_what_is_not_frozen(algorithm):
    run = ran(Parts, pf.Privacy(), algorithm=algorithm(), momentum=0.0)
    assert run.parameters.shape == (57,)
    assert run.parameters.isfinite().all()


def test_an_algorithm_that_trains_body_and_head_apart_says_that_the_body_is_frozen():
    def headed():
        return Network(copy.deepcopy(PRETRAINED), nn.Linear(5, 2), 5)

    with pytest.raises(pf.ConfigError, match="the body of the model Network is frozen, and this algorithm trains body"):
        ran(headed, pf.Privacy(), algorithm=pf.FedRep())


@pytest.mark.parametrize("of_all", [True, False])
def test_opacus_arguments_take_a_frozen_body_and_leave_it_alone(of_all):
    module = FineTuned()
    parameters = module.parameters() if of_all else module.head.parameters()
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=20)
    federation = pf.make_private(
        module=module,
        optimizer=torch.optim.SGD(parameters, lr=0.5, weight_decay=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        partition=pf.IID(clients=4),
    )
    run = federation.simulate(rounds=1)
    assert run.parameters.shape == (12,)
    assert torch.equal(federation.task.model(1).body[0].weight, PRETRAINED[0].weight)
    with pytest.raises(pf.ConfigError, match="optimizer has other parameters than module"):
        pf.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.body.parameters(), lr=0.5),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            partition=pf.IID(clients=4),
        )
