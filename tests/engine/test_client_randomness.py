"""Drop-out and random numbers that are functions: those of a layer, of one client, whoever trains it and how."""

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

import privfl as pf
from privfl.engine.client_randomness import NOT_REPEATED, NOT_STEADY, ClientRandomness, randomness_of
from privfl.engine.dropout import StreamDropout
from privfl.errors import ConfigError
from privfl.privacy.noise.source import NoiseSource, NoiseStream

NONE = pf.Privacy()
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, max_grad_norm=0.5, sample_rate=0.5), noise_key=3)
ON_UPDATES = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(2.0)), noise_key=3)
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=5)


def entered(key=0):
    randomness = ClientRandomness()
    randomness.layer.generator = NoiseStream(bytes([key]) * 32)
    return randomness


def layer(probability, noise_dims=None, key=0):
    made = StreamDropout(probability, noise_dims)
    made.generator = NoiseStream(bytes([key]) * 32)
    return made


class Layers(nn.Module):
    """Drop-out as layers."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(16, 4)
        self.channels, self.values = nn.Dropout2d(0.25), nn.Dropout(0.5)

    def forward(self, inputs):
        return self.out(self.values(self.channels(F.relu(self.conv(inputs))).flatten(1)))


class Functions(Layers):
    """The same drop-out as functions, one of them in place."""

    def forward(self, inputs):
        hidden = F.dropout2d(F.relu(self.conv(inputs)), 0.25, self.training)
        return self.out(F.dropout(hidden.flatten(1), 0.5, self.training, inplace=True))


class Unknown(Layers):
    """The same where nobody can tell from the code which layers are passed."""

    def forward(self, inputs):
        hidden = F.relu(self.conv(inputs))
        if self.training:
            hidden = F.dropout2d(hidden, 0.25)
        hidden = hidden.flatten(1)
        return self.out(F.dropout(hidden, 0.5, self.training, inplace=True))


class Noisy(nn.Module):
    """Noise in training, of every kind of function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 4)

    def forward(self, inputs):
        inputs = inputs.flatten(1)
        if self.training:
            inputs = inputs + 0.1 * torch.randn_like(inputs) + 0.1 * torch.rand(inputs.shape)
            inputs = inputs * torch.empty(len(inputs), 1).bernoulli_(0.9)
        return self.inner(inputs)


@dataclass(frozen=True)
class Drawing(pf.FedAvg):
    """An algorithm that draws where it should not."""

    name: ClassVar[str] = "drawing"
    weighting: str = "uniform"

    def step(self, local, received, batch, client, training):
        gradient = client.gradient(client.loss, local["parameters"], batch)
        local["parameters"].sub_(training.learning_rate * gradient * torch.rand(()))


@dataclass(frozen=True)
class Dropping(pf.FedAvg):
    """An algorithm that drops values of its step."""

    name: ClassVar[str] = "dropping"
    weighting: str = "uniform"

    def step(self, local, received, batch, client, training):
        before = F.dropout(local["parameters"], 0.5) * 0.01
        local["parameters"].sub_(F.dropout(client.gradient(client.loss, local["parameters"], batch)) + before)


def task(model=Functions, loss=None, size=4):
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(48, 1, size, size)), np.arange(48) % 4
    return pf.Task.from_arrays(
        inputs.astype(np.float32), targets, clients=np.arange(48) % 4, classes=4, model=model, loss=loss
    )


def trained(of, privacy=NONE, algorithm=None, *, engine="loop", workers=1, global_seed=0):
    torch.manual_seed(global_seed)
    return pf.simulate(
        of,
        algorithm or pf.FedAvg(weighting="uniform"),
        rounds=2,
        training=TRAINING,
        privacy=privacy,
        execution=pf.Execution(engine=engine, workers=workers),
    )


@pytest.mark.parametrize("privacy", [NONE, DPSGD, ON_UPDATES], ids=["plain", "DP-SGD", "noise on updates"])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("model", [Functions, Unknown])
def test_drop_out_as_a_function_trains_as_drop_out_as_a_layer(monkeypatch, engine, privacy, model):
    monkeypatch.setattr(NoiseSource, "for_run", lambda self, _: self)  # which is another one for every model
    layers, functions = (trained(task(kind), privacy, engine=engine) for kind in (Layers, model))
    assert torch.allclose(functions.parameters, layers.parameters, rtol=0, atol=1e-5)
    assert functions.warnings == ()
    assert functions.statement.to_json() == layers.statement.to_json()


@pytest.mark.filterwarnings("ignore:.*")  # of torch.compile, about transforms that it does not follow
@pytest.mark.parametrize("model", [Layers, Unknown])
@pytest.mark.parametrize("privacy", [NONE, DPSGD], ids=["plain", "DP-SGD"])
def test_a_compiled_model_with_drop_out_trains_as_the_model_itself(monkeypatch, model, privacy):
    monkeypatch.setattr(NoiseSource, "for_run", lambda self, _: self)
    expected = trained(task(model), privacy)
    for engine in ("loop", "vectorised"):
        compiled = trained(task(lambda: torch.compile(model(), backend="eager")), privacy, engine=engine)
        assert torch.allclose(compiled.parameters, expected.parameters, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*")
def test_masks_of_a_compiled_model_are_made_outside_of_its_graphs_wherever_it_is_tried(monkeypatch):
    """Whether a graph that holds them fails depends on what the process compiled before."""
    made, begin = [], ClientRandomness.__init__

    def noted(self, *given):
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(ClientRandomness, "__init__", noted)
    trained(task(lambda: torch.compile(Unknown(), backend="eager")), DPSGD)
    assert len(made) > 1
    assert all("dropped" in vars(one) for one in made)


@pytest.mark.parametrize("model", [Functions, Unknown, Noisy])
@pytest.mark.parametrize("algorithm", [pf.FedAvg(weighting="uniform"), Drawing()], ids=lambda one: one.name)
def test_the_seed_repeats_a_run_whatever_others_draw_and_for_any_number_of_workers(model, algorithm):
    one, other = (trained(task(model), algorithm=algorithm, workers=workers, global_seed=workers) for workers in (1, 2))
    assert torch.equal(one.parameters, other.parameters)


@pytest.mark.parametrize("algorithm", [Drawing(), Dropping()], ids=lambda one: one.name)
@pytest.mark.parametrize("privacy", [NONE, ON_UPDATES], ids=["plain", "noise on updates"])
def test_a_step_that_draws_is_not_stacked(algorithm, privacy):
    """Its masks would depend on who else is in the stack."""
    loop, stacked = (trained(task(), privacy, algorithm, engine=engine) for engine in ("loop", "vectorised"))
    (warning,) = stacked.warnings
    assert warning.startswith("clients are trained one by one because")
    assert torch.equal(loop.parameters, stacked.parameters)


def test_what_a_client_draws_costs_no_claim_about_clients():
    """PyTorch's own generator goes on from client to client, and one client more would move what all others draw."""
    run = trained(task(Noisy), ON_UPDATES, Drawing())
    assert run.statement.cell("client", "public").epsilon < 10


@pytest.mark.parametrize("feature", [False, True])
def test_alpha_drop_out_gives_the_two_values_of_pytorch(feature):
    """Of one and the same input each output is one of two values, kept or dropped."""
    kind = nn.FeatureAlphaDropout if feature else nn.AlphaDropout
    dropping, inputs, draws = kind(0.3), torch.full((20, 30, 2), 0.7), []
    with entered():
        draws.append(dropping(inputs))
    torch.manual_seed(0)
    draws.append(dropping(inputs))
    ours, theirs = (draw.unique() for draw in draws)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert len(ours) == 2
    assert bool((draws[0][..., 0] == draws[0][..., 1]).all()) == feature
    assert 0.05 < float((draws[0] == ours[0]).double().mean()) < 0.6  # of 600: 13 deviations to either side


class Tempered(Functions):
    """A parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs):
        return super().forward(inputs) / self.temperature


def test_both_engines_clip_a_parameter_that_is_a_single_number():
    loop, stacked = (trained(task(Tempered), DPSGD, engine=engine) for engine in ("loop", "vectorised"))
    assert torch.allclose(loop.parameters, stacked.parameters, rtol=0, atol=1e-5)
    assert stacked.warnings == ()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_of_keys", [4, 2])
def test_attention_drops_its_weights_with_the_masks_of_a_layer(causal, heads_of_keys):
    torch.manual_seed(0)
    query = torch.randn(2, 4, 5, 6)
    key, value = torch.randn(2, heads_of_keys, 5, 6), torch.randn(2, heads_of_keys, 5, 3)
    with entered():
        found = F.scaled_dot_product_attention(
            query, key, value, dropout_p=0.3, is_causal=causal, enable_gqa=heads_of_keys < 4
        )
    key, value = (one.repeat_interleave(4 // heads_of_keys, 1) for one in (key, value))
    scores = query @ key.mT / 6**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    assert torch.allclose(found, layer(0.3)(scores.softmax(-1)) @ value, atol=1e-6)


def test_heads_drop_the_same_weights_whether_these_are_returned_or_not():
    torch.manual_seed(0)
    attention, inputs = nn.MultiheadAttention(6, 3, dropout=0.4, batch_first=True).train(), torch.randn(4, 5, 6)
    found = []
    for wanted in (True, False):
        with entered():
            found.append(attention(inputs, inputs, inputs, need_weights=wanted)[0])
    attention.dropout = 0.0
    assert torch.allclose(*found, atol=1e-6)
    assert not torch.allclose(found[0], attention(inputs, inputs, inputs)[0], atol=1e-2)


class Attending(nn.Module):
    """Attention whose weights are asked for, and so lie head by head, before an encoder's layer as it comes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 4)

    def forward(self, inputs):
        inputs = inputs.flatten(1, 2)
        return self.out(self.encoder(self.attention(inputs, inputs, inputs)[0]).mean(1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("privacy", [NONE, DPSGD], ids=["plain", "DP-SGD"])
def test_both_engines_drop_the_same_weights_of_attention(privacy):
    loop, stacked = (trained(task(Attending), privacy, engine=engine) for engine in ("loop", "vectorised"))
    assert torch.allclose(loop.parameters, stacked.parameters, rtol=0, atol=1e-5)
    assert stacked.warnings == ()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_recurrent_network_gone_through_layer_by_layer_is_that_of_pytorch(kind, batch_first, both_ways):
    torch.manual_seed(0)
    network = kind(3, 4, num_layers=3, dropout=1e-9, batch_first=batch_first, bidirectional=both_ways).train()
    inputs = torch.randn(5, 6, 3)
    with entered() as randomness:
        found, ends = network(inputs)
    assert randomness.asked
    network.dropout = 0.0
    expected, expected_ends = network(inputs)
    assert torch.allclose(found, expected, atol=1e-6)
    for one, other in zip(*(end if kind is nn.LSTM else [end] for end in (ends, expected_ends)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_rows_of_a_recurrent_network_keep_their_masks_where_time_comes_first():
    torch.manual_seed(0)
    network, inputs = nn.LSTM(3, 4, num_layers=2, dropout=0.5).train(), torch.randn(5, 6, 3)
    with entered():
        time_first = network(inputs)[0]
    network.batch_first = True
    with entered():
        rows_first = network(inputs.transpose(0, 1))[0]
    assert torch.allclose(time_first, rows_first.transpose(0, 1), atol=1e-6)


def test_packed_sequences_are_left_to_pytorch():
    network, inputs = nn.LSTM(3, 4, num_layers=2, dropout=0.5).train(), torch.randn(5, 2, 3)
    packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([5, 3]))
    torch.manual_seed(1)
    expected = network(packed)[0].data
    torch.manual_seed(1)
    with entered() as randomness:
        assert torch.equal(network(packed)[0].data, expected)
    assert randomness.asked


DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(0, 1 << 30, (3,)),
    "randperm": lambda: torch.randperm(50),
    "rand_like": lambda: torch.rand_like(torch.ones(3), dtype=torch.float64),
    "randn_like": lambda: torch.randn_like(torch.ones(3), requires_grad=True),
    "randint_like": lambda: torch.randint_like(torch.ones(9), 1 << 20),
    "randint_like from": lambda: torch.randint_like(torch.ones(9), 5, 1 << 20),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5)),
    "bernoulli in place": lambda: torch.empty(64).bernoulli_(0.5),
    "normal": lambda: torch.normal(torch.zeros(3), torch.ones(3)),
    "multinomial": lambda: torch.ones(64).multinomial(9),
    "uniform in place": lambda: torch.empty(3).uniform_(),
    "exponential in place": lambda: torch.empty(3).exponential_(),
    "gumbel soft-max": lambda: F.gumbel_softmax(torch.zeros(4, 9)),
    "a distribution": lambda: torch.distributions.Normal(torch.zeros(3), 1.0).rsample(),
    "drop-out": lambda: F.dropout(torch.ones(64)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_come_from_the_stream_alone(name):
    drawn, before = [], torch.get_rng_state()
    for key in (1, 1, 2):
        with entered(key):
            drawn.append(DRAWS[name]())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    plain = DRAWS[name]()
    assert (plain.shape, plain.dtype, plain.requires_grad) == (drawn[0].shape, drawn[0].dtype, drawn[0].requires_grad)


def test_limits_of_whole_numbers_are_kept():
    with entered():
        drawn = torch.cat([torch.randint_like(torch.ones(999), 7), torch.randint_like(torch.ones(999), 3, high=7)])
    assert set(drawn[:999].tolist()) == set(range(7))
    assert set(drawn[999:].tolist()) == set(range(3, 7))


def test_a_generator_of_ones_own_is_used():
    with entered():
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_for_many_rows_at_once_nothing_but_drop_out_is_drawn():
    with entered():
        dropped = vmap(lambda row: F.dropout(row[None], 0.5)[0])(torch.ones(5, 64))
        with pytest.raises(RuntimeError, match="random operation"):
            vmap(torch.rand_like)(torch.ones(5, 64))
    assert torch.equal(dropped, layer(0.5)(torch.ones(5, 64)))


def test_at_rest_it_looks_at_no_function_and_then_at_all_again():
    first = entered()
    with first:
        expected = F.dropout(torch.ones(64))
    again = entered()
    with again:
        with again.at_rest():
            torch.manual_seed(0)
            one = F.dropout(torch.ones(64))
            torch.manual_seed(0)
            assert torch.equal(F.dropout(torch.ones(64)), one)
            assert not again.asked
        assert torch.equal(F.dropout(torch.ones(64)), expected)
        with pytest.raises(ZeroDivisionError), again.at_rest():
            raise ZeroDivisionError
        assert not torch.equal(F.dropout(torch.ones(64)), expected)  # the stream goes on


def test_drop_out_that_drops_nothing_asks_for_nothing():
    with entered() as randomness:
        inputs = torch.ones(3, 4)
        assert torch.equal(F.dropout(inputs, 0.0), inputs)
        assert torch.equal(F.dropout(inputs, 0.5, training=False), inputs)
    assert not randomness.asked
    with entered(), pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(inputs, 1.5)


class OfNumpy(Noisy):
    def forward(self, inputs):
        return self.inner(inputs.flatten(1)) * (1 + np.random.rand())  # noqa: NPY002


class OfPython(Noisy):
    def forward(self, inputs):
        return self.inner(inputs.flatten(1)) * (1 + (0.01 * random.random() if self.training else 0))


class AlwaysDropping(Layers):
    def forward(self, inputs):
        return self.out(F.dropout(F.relu(self.conv(inputs)).flatten(1)))


class Counted:
    """A loss that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, network, inputs, targets):
        self.calls += 1
        return F.cross_entropy(network(inputs), targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "asked", "notes"),
    [
        (Layers, False, []),
        (Functions, True, []),
        (Noisy, True, []),
        (AlwaysDropping, True, [NOT_STEADY]),
        (OfNumpy, False, [NOT_REPEATED, NOT_STEADY]),
        (OfPython, False, [NOT_REPEATED]),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_a_model_draws_is_found_out_and_said(model, asked, notes):
    of, before = task(model), torch.get_rng_state()
    assert randomness_of(of.model(0), of) == (asked, notes)
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(of).warnings == tuple(notes)


def test_a_loss_that_remembers_is_tried_on_a_copy():
    loss = Counted()
    of = task(Noisy, loss)
    calls = loss.calls
    randomness_of(of.model(0), of)
    assert loss.calls == calls


def test_under_dp_sgd_what_draws_in_evaluation_is_refused():
    with pytest.raises(ConfigError, match=r"if network\.training, F\.dropout\(x, training=self\.training\)"):
        trained(task(AlwaysDropping), DPSGD)


def test_streams_differ_from_client_to_client():
    first, second = (NoiseStream(bytes([key]) * 32) for key in (1, 2))
    randomness = ClientRandomness()
    drawn = []
    for stream in (first, second):
        randomness.draw_alone(stream)
        with randomness:
            drawn.append(torch.rand(3))
    assert not torch.equal(*drawn)
