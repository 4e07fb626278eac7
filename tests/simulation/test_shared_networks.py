"""What a network, a loss or settings remember from one client to the next is put back, or nothing is claimed."""

import importlib
import os
import re
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.simulation.shared_state import SHARED_STATE

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def update_noise(deviation):
    return pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(deviation, at="client")))


def dp_sgd(deviation):
    return pf.Privacy(training=pf.DPSGD(noise_multiplier=deviation, sample_rate=1.0))


def ran(privacy, *, algorithm=None, changed=False, engine="loop", training=pf.LocalTraining, **own):
    """Two rounds of three clients, of whom the first has other examples if ``changed``."""
    inputs = X * np.where(np.arange(60) < 20, -30 if changed else 1, 1)[:, None].astype(np.float32)
    task = {"test": (X, Y), "clients": np.arange(60) // 20, "classes": 2, "model": "logistic", **own}
    return pf.simulate(
        pf.Task.from_arrays(inputs, Y, **task),
        algorithm or pf.FedAvg("uniform"),
        rounds=2,
        training=training(learning_rate=0.5, batch_size=5),
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine=engine, workers=1),
    )


def claimed(run):
    return run.statement.cell("sample", "public").epsilon


def others_moved(privacy, make, **given):
    """How far the first client's examples move what the others send in the first round."""
    one, other = (ran(privacy, changed=changed, **make(), **given).transcript[0] for changed in (False, True))
    sent = [(run.training.uploads[client]["update"] for run in (one, other)) for client in (1, 2)]
    return max(float((a - b).norm()) for a, b in sent)


class InTensor(nn.Module):
    """Centres inputs by a running mean in a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(5, 2), torch.zeros(5)

    def forward(self, inputs):
        if self.training:
            self.mean.mul_(0.9).add_(inputs.detach().mean(0), alpha=0.1)
        return self.layer(inputs - self.mean)


class InObject(nn.Module):
    """The same, in an object that it holds."""

    def __init__(self):
        super().__init__()
        self.layer, self.kept = nn.Linear(5, 2), {"means": [torch.zeros(5)]}

    def forward(self, inputs):
        means = self.kept["means"]
        if self.training:
            means.append(0.9 * means[-1] + 0.1 * inputs.detach().mean(0))
        return self.layer(inputs - means[-1])


class ByHook(nn.Module):
    """The same, by a hook whose closure holds it."""

    def __init__(self):
        super().__init__()
        self.layer, means = nn.Linear(5, 2), [torch.zeros(5)]

        def centred(layer, given):
            if layer.training:
                means.append(0.9 * means[-1] + 0.1 * given[0].detach().mean(0))
            return (given[0] - means[-1],)

        self.layer.register_forward_pre_hook(centred)

    def forward(self, inputs):
        return self.layer(inputs)


class Drawing(nn.Module):
    """Adds numbers from a generator that it holds."""

    def __init__(self):
        super().__init__()
        self.layer, self.draws = nn.Linear(5, 2), np.random.default_rng(0)

    def forward(self, inputs):
        return self.layer(inputs + (float(self.draws.normal()) if self.training else 0.0))


def onto_the_network(network, inputs, targets):
    if network.training and len(inputs) > 1:
        network.mean = 0.9 * getattr(network, "mean", 0) + 0.1 * inputs.mean(0)
    return F.cross_entropy(network(inputs - getattr(network, "mean", 0)), targets, reduction="none")


class Centring:
    """A loss that centres inputs by a running mean."""

    mean = torch.zeros(5)

    def __call__(self, network, inputs, targets):
        if network.training and len(inputs) > 1:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return F.cross_entropy(network(inputs - self.mean), targets, reduction="none")


PUT_BACK = {
    "a tensor of the model": (update_noise, lambda: {"model": InTensor}),
    "an attribute that a loss gives a shipped network": (update_noise, lambda: {"loss": onto_the_network}),
    "the same, where a personal model is trained": (
        dp_sgd,
        lambda: {"loss": onto_the_network, "algorithm": pf.Ditto(weighting="uniform")},
    ),
}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("kind", PUT_BACK)
def test_what_can_be_put_back_is_and_the_claim_holds(kind, engine):
    privacy, make = PUT_BACK[kind]
    assert claimed(ran(privacy(4.0), engine=engine, **make())) < np.inf
    assert others_moved(privacy(1e-4), make, engine=engine) < 0.01


NOT_PUT_BACK = {
    "lists in a table of the model": (update_noise, lambda: {"model": InObject}, "the network that trains"),
    "a hook's closure": (update_noise, lambda: {"model": ByHook}, "the network that trains"),
    "a generator of the model": (update_noise, lambda: {"model": Drawing}, "the network that trains"),
    "a loss, where a personal model is trained": (
        dp_sgd,
        lambda: {"loss": Centring(), "algorithm": pf.Ditto(weighting="uniform")},
        "the loss .*Centring",
    ),
}


@pytest.mark.parametrize("kind", NOT_PUT_BACK)
def test_what_cannot_takes_the_claims_away(kind):
    privacy, make, named = NOT_PUT_BACK[kind]
    run = ran(privacy(4.0), **make())
    assert claimed(run) == np.inf
    text = " ".join(str(run.statement).split())
    assert SHARED_STATE in text
    if kind != "a generator of the model":  # which tells of others' numbers of rows alone, and these are equal
        assert others_moved(privacy(1e-4), make) > 0.01
    assert re.search(f"{named} (.* and .* )?changed while clients trained", text)


def test_a_loss_that_remembers_in_a_field_is_each_clients_own_under_noise_on_updates():
    assert claimed(ran(update_noise(4.0), loss=Centring())) < np.inf
    assert others_moved(update_noise(1e-4), lambda: {"loss": Centring()}) < 0.01


class Settings(pf.LocalTraining):
    """Local training that has a drawer."""

    drawer: ClassVar[dict[str, torch.Tensor]] = {}


class HandingOn(pf.FedAvg):
    """Begins with what the client before ended with."""

    name: ClassVar[str] = "handing-on"

    def begin(self, received, client_state, training):
        before = self.found(training)
        return {"parameters": (received["parameters"] if before is None else before).clone()}

    def finish(self, local, received, training):
        self.leave(local["parameters"].clone(), training)
        return super().finish(local, received, training)


class InSettings(HandingOn):
    """By the settings."""

    def found(self, training):
        return training.drawer.get("last")

    def leave(self, parameters, training):
        training.drawer["last"] = parameters


class InModule(HandingOn):
    """By a module that it imports by its name."""

    def found(self, training):
        return importlib.import_module("drawer_of_a_test").LAST.get("last")

    def leave(self, parameters, training):
        __import__("drawer_of_a_test").LAST["last"] = parameters


class InEnvironment(HandingOn):
    """By a variable of the environment."""

    def found(self, training):
        text = os.environ.get("DRAWER_OF_A_TEST")
        return None if text is None else torch.tensor([float(one) for one in text.split()])

    def leave(self, parameters, training):
        os.environ["DRAWER_OF_A_TEST"] = " ".join(map(str, parameters.tolist()))


@pytest.mark.parametrize("kind", [InSettings, InModule, InEnvironment])
def test_settings_modules_by_name_and_the_environment_hand_nothing_on_unseen(kind, tmp_path, monkeypatch):
    (tmp_path / "drawer_of_a_test.py").write_text("LAST = {}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DRAWER_OF_A_TEST", "")
    monkeypatch.delenv("DRAWER_OF_A_TEST")
    Settings.drawer.clear()
    run = ran(update_noise(4.0), algorithm=kind("uniform"), training=Settings)
    sys.modules.pop("drawer_of_a_test", None)
    assert claimed(run) == np.inf
    assert SHARED_STATE in " ".join(str(run.statement).split())
    assert claimed(ran(update_noise(4.0), training=Settings)) < np.inf
