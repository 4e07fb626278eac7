"""A user's own model and loss are tried on public rows when a task is made, and refused with the mend."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.fit import check_frozen
from privfl.privacy.loss import coupled

X, Y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
SHARED = nn.Linear(5, 3)


def task(**own):
    return pf.Task.from_arrays(X, Y, partition=pf.IID(clients=3), **own)


def squared(network, inputs, targets):
    return (network(inputs) - F.one_hot(targets, 3)).square().mean(1)


@coupled
def centred(network, inputs, targets, *, present):
    return F.cross_entropy(network(inputs) - network(inputs)[present].mean(0), targets, reduction="none")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear(5, 3), "model is a Linear object, and every seed and worker needs one of its own; give a function"),
        (nn.Linear, "model is the class Linear, which needs arguments .*; give model=lambda: …"),
        (lambda: nn.Linear(6, 3), r"on inputs of shape \(5,\) and 3 classes, fails with RuntimeError: .*mat1 and mat2"),
        (
            lambda: nn.Linear(5, 2),
            r"gives torch.float32 of shape \(3, 2\) for 3 samples, where floats \(3, 3\)",
        ),
        (lambda: nn.Sequential(nn.Linear(5, 3), nn.Flatten(0)), r"of shape \(9,\) for 3 samples"),
        (lambda: SHARED, "which returned the same parameters twice; let it build new ones"),
        (lambda: nn.Sequential(SHARED), "which returned the same parameters twice"),
        (lambda: 3, "which returned 3; let it return a torch.nn.Module"),
        (lambda: nn.ReLU(), "has no parameters"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "whose layer '0' is a LazyLinear, which has no size before it sees"),
        (lambda: torch.jit.script(nn.Linear(5, 3)), r"which is compiled by torch\.jit; give the torch\.nn\.Module"),
        (3, "model is 3; give text in quotes, a function or None"),
        ("logistik", "unknown model 'logistik': did you mean 'logistic'"),
        ("two-cnn", r"model 'two-cnn' takes inputs of kind image \(C, H, W\), not of shape \(5,\)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_when_the_task_is_made(model, sentence):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        task(model=model)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            F.cross_entropy,
            r"the loss cross_entropy\(network, inputs, targets\) fails with \w+Error: .*; write it",
        ),
        (nn.CrossEntropyLoss(), r"the loss CrossEntropyLoss\(network, inputs, targets\) fails with TypeError"),
        (
            lambda network, x, y: F.cross_entropy(network(x), y),
            r"of shape \(\) for 3 samples, where floats \(3,\)",
        ),
        (lambda network, x, y: network(x), r"of shape \(3, 3\) for 3 samples"),
        (lambda network, x, y: y, r"gives torch.int64 of shape \(3,\) for 3 samples, where floats \(3,\) are needed"),
        (lambda network, x, y: 1.0, r"gives 1.0 for 3 samples"),
        ("cross-entropy", "loss is 'cross-entropy'; give a function"),
    ],
)
def test_a_loss_that_is_not_one_term_per_sample_is_refused_when_the_task_is_made(loss, sentence):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        task(loss=loss)
    assert "\n" not in str(refusal.value)
    assert (
        "F.cross_entropy(network(inputs), targets, reduction='none')" in str(refusal.value) or loss == "cross-entropy"
    )


@pytest.mark.parametrize("loss", [squared, centred])
def test_own_models_and_losses_that_fit_are_taken_and_train(loss):
    own = task(model=lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)), loss=loss)
    assert pf.simulate(own, pf.FedAvg(), rounds=1).parameters.isfinite().all()


def test_the_trial_leaves_models_and_generators_as_they_are():
    def noisy(network, inputs, targets):
        return F.cross_entropy(network(inputs) + torch.rand(1), targets, reduction="none")

    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    network = task(model=lambda: nn.Linear(5, 3), loss=noisy).model(0)
    assert network.training
    assert torch.equal(torch.rand(1), expected)


class Sparse(nn.Module):
    """Looks up rows of a table, whose gradient is sparse."""

    def __init__(self, functional=False):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 3, sparse=not functional), nn.Linear(3, 3)

    def forward(self, x):
        rows = (x > 0).long()
        return self.last(F.embedding(rows, self.table.weight, sparse=True).sum(1))


class Bilinear(nn.Module):
    """Has a layer that PyTorch cannot compute in bfloat16."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Bilinear(4, 4, 3)

    def forward(self, x):
        return self.last(self.first(x), self.first(x))


def constant(network, inputs, targets):
    return torch.zeros(len(inputs))


def detached(network, inputs, targets):
    return network(inputs).detach().square().sum(1)


@dataclass(frozen=True)
class Counting(pf.FedAvg):
    """Trains nothing, and has no use for a gradient."""

    def step(self, local, received, batch, client, training):
        local["parameters"].add_(1.0)


@dataclass(frozen=True)
class Taking(pf.FedAvg):
    """Takes the gradient in a step of its own."""

    def step(self, local, received, batch, client, training):
        local["parameters"].sub_(client.gradient(client.loss, local["parameters"], batch))


UNTRAINABLE = {
    "a constant loss": ({"model": lambda: nn.Linear(5, 3), "loss": constant}, "constant"),
    "a detached loss": ({"model": lambda: nn.Linear(5, 3), "loss": detached}, "detached"),
    "a sparse layer": ({"model": Sparse}, "sparse; nobody could clip such gradients or add them up"),
    "a sparse function": ({"model": lambda: Sparse(True)}, "sparse; nobody could clip such gradients or add them up"),
}
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))


@pytest.mark.parametrize("case", UNTRAINABLE)
def test_what_has_no_gradient_to_train_by_is_refused_before_any_work(case, tmp_path):
    parts, sentence = UNTRAINABLE[case]
    own = task(**parts)
    for algorithm, privacy in ((pf.FedAvg(), pf.Privacy()), (pf.FedAvg(), DPSGD), (Counting(), DPSGD)):
        with pytest.raises(ConfigError, match=sentence):
            pf.simulate(own, algorithm, rounds=1, privacy=privacy, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", UNTRAINABLE)
def test_an_algorithm_of_ones_own_may_do_without_and_is_told_when_it_asks(case):
    parts, sentence = UNTRAINABLE[case]
    own = task(**parts)
    assert pf.simulate(own, Counting(), rounds=1).parameters.isfinite().all()
    with pytest.raises(ConfigError, match=sentence):
        pf.simulate(own, Taking(), rounds=1)


@pytest.mark.parametrize("privacy", [pf.Privacy(), DPSGD], ids=["bare", "dpsgd"])
def test_what_cannot_be_computed_in_bfloat16_is_refused_before_any_work(privacy):
    execution = pf.Execution(precision="bfloat16", device="cpu")
    with pytest.raises(ConfigError, match=r"cannot be computed in bfloat16 \(.*take precision = 'float32'"):
        pf.simulate(task(model=Bilinear), pf.FedAvg(), rounds=1, privacy=privacy, execution=execution)
    if privacy.training is None:
        assert pf.simulate(task(model=Bilinear), pf.FedAvg(), rounds=1).parameters.isfinite().all()


def test_a_model_whose_parameters_are_all_frozen_is_refused_before_there_is_a_task():
    with pytest.raises(ConfigError, match="every parameter of the model is frozen"):
        task(model=lambda: nn.Linear(5, 3).requires_grad_(False))


def test_what_is_frozen_must_come_out_alike_whenever_the_model_is_built():
    numbers = iter(range(9))

    def counted():
        network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        network[0].weight.requires_grad_(False).fill_(next(numbers))
        return network

    def half():
        return nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3))

    with pytest.raises(
        ConfigError, match=r"the model's frozen '0\.weight' comes out otherwise when the model is built"
    ):
        task(model=counted)
    assert task(model=half).model(7)[1].weight.ne(task(model=half).model(0)[1].weight).any()
    check_frozen(*(task(model=half).model(seed) for seed in (0, 7)))
    with pytest.raises(ConfigError, match=r"the model's frozen '0\.bias' comes out otherwise"):
        check_frozen(half(), half())
    later = [0.0, 0.0]

    def drifting():
        later[0] += later[1]
        network = half()
        network[0].weight.fill_(later[0])
        return network

    own, later[1] = task(model=drifting), 1.0
    with pytest.raises(ConfigError, match=r"the model's frozen '0\.weight' comes out otherwise"):
        pf.simulate(own, pf.FedAvg(), rounds=1)


def test_another_default_type_of_pytorch_is_named_and_not_the_model():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(
            ConfigError, match=r"PyTorch's default type is torch\.float64, .*set_default_dtype\(torch\.float"
        ):
            task(model=lambda: nn.Linear(5, 3))
        with pytest.raises(ConfigError, match=r"PyTorch's default type is torch\.float64"):
            pf.simulate(task(), pf.FedAvg(), rounds=1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_task_is_shown_by_what_it_holds_and_not_by_its_tensors():
    assert repr(task()) == (
        "Task(arrays: 3 clients, 48 training examples of shape (5,), 12 test examples, 3 classes, model logistic)"
    )


class Scaled(nn.Module):
    """A loss with a parameter of its own, and a network that it only looks at."""

    def __init__(self):
        super().__init__()
        self.scale, self.teacher = nn.Parameter(torch.ones(2)), nn.Linear(5, 3)

    def forward(self, network, inputs, targets):
        with torch.no_grad():
            taught = self.teacher(inputs).softmax(1)
        return F.cross_entropy(network(inputs) * self.scale.mean(), targets, reduction="none") + taught.mean(1)


LOOSE = torch.ones(4, requires_grad=True)


def loose(network, inputs, targets):
    return F.cross_entropy(network(inputs) * LOOSE.mean(), targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "named"), [(Scaled(), "('scale' of the loss)"), (loose, "(one of shape (4,))"), (squared, "")]
)
@pytest.mark.parametrize("privacy", [None, pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))])
def test_tensors_of_a_loss_that_a_gradient_reaches_are_told_since_they_are_never_trained(loss, named, privacy):
    run = pf.simulate(task(loss=loss), pf.FedAvg("uniform"), rounds=1, privacy=privacy)
    told = [one for one in run.summary["warnings"] if "never trained" in one]
    assert [named in one for one in told] == [True] * bool(named)
