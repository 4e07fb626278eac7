"""Inverting the updates of a run: a single step gives its image away, several steps do when they are unrolled."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.gradient_inversion.inversion import OTHERS, GradientInversion, leaked_image, local_steps, mean_gradient
from attacks.gradient_inversion.sigmoid_lenet import sigmoid_lenet
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((1, 2, 20))
PIXELS = Pixels.of("digits")


def auxiliary(client):
    return Auxiliary(public=public(ROWS), truth={"images": PIXELS.images(DIGITS.inputs[ROWS[client]])})


def victim(seed):
    return sigmoid_lenet((1, 8, 8), 10, generator=torch.Generator().manual_seed(seed))


ONE_STEP = pf.LocalTraining(learning_rate=0.1, batch_size=20, momentum=0.5, weight_decay=0.01)


@pytest.fixture(scope="module")
def perceptron():
    return run_of(ROWS, pf.FedAvg(), ONE_STEP)


@pytest.fixture(scope="module")
def lenet():
    return run_of(ROWS, pf.FedAvg(), ONE_STEP, model=lambda: victim(0))


def test_a_perceptrons_update_holds_the_image_up_to_rounding(perceptron):
    """Client 0 took one step on one image; momentum has not begun, and the weight decay is known."""
    result = GradientInversion(client=0, method="analytic").run(perceptron, auxiliary(0))
    assert float((result.images - auxiliary(0).truth["images"]).abs().max()) < 1e-3  # float32 messages
    assert result.metrics["psnr"].value > 60
    assert result.advantage["psnr"].value > 40


@pytest.mark.parametrize(
    ("method", "iterations", "least"), [("dlg", 25, 25), ("idlg", 25, 25), ("inverting-gradients", 100, 20)]
)
def test_a_lenets_update_gives_its_single_image_away(method, iterations, least, lenet):
    result = GradientInversion(client=0, method=method, iterations=iterations).run(lenet, auxiliary(0))
    assert result.metrics["psnr"].value > least
    assert set(result.nulls) == {"mean image", "class mean", "random image", OTHERS}
    assert result.settings["labels"] == DIGITS.targets[ROWS[0]].tolist()
    assert result.advantage["psnr"].value > 5


def test_gradinversion_reads_the_labels_of_two_images(lenet):
    result = GradientInversion(client=1, method="gradinversion", batch=2, iterations=30, attempts=1).run(
        lenet, auxiliary(1)
    )
    assert result.settings["labels"] == sorted(DIGITS.targets[ROWS[1]].tolist())
    assert result.images.shape == (2, 1, 8, 8)


def test_several_local_steps_are_unrolled():
    transcript = run_of(
        ROWS, pf.FedAvg(), pf.LocalTraining(learning_rate=0.5, batch_size=1, epochs=2), model=lambda: victim(1)
    )
    attack = GradientInversion(client=0, method="inverting-gradients", iterations=80)
    assert attack.run(transcript, auxiliary(0)).metrics["psnr"].value > 16


def test_a_gradient_is_read_off_an_update_of_one_step():
    network = victim(2)
    inputs, targets = DIGITS.inputs[:3], DIGITS.targets[:3]
    expected = batch_gradient(network, inputs, targets)
    training = pf.LocalTraining(learning_rate=0.2, batch_size=3, weight_decay=0.1)
    optimiser = torch.optim.SGD(network.parameters(), 0.2, weight_decay=0.1)
    before = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    torch.nn.functional.cross_entropy(network(inputs), targets).backward()
    optimiser.step()
    update = torch.cat([parameter.detach().flatten() for parameter in network.parameters()]) - before
    for found, part in zip(mean_gradient(victim(2), update, training, 1), expected, strict=True):
        torch.testing.assert_close(found, part, atol=1e-5, rtol=1e-3)
    assert [local_steps(pf.LocalTraining(batch_size=3, epochs=2), n) for n in (1, 3, 4)] == [2, 2, 4]


@pytest.fixture(scope="module")
def noisy():
    """Client 0 has one image and takes one noisy step in each of eight rounds, in half of which it is asked."""
    training = pf.LocalTraining(learning_rate=0.2, batch_size=1, learning_rate_decay=0.5, decay_every=2)
    protection = pf.DPSGD(noise_multiplier=0.1, max_grad_norm=1.0, sample_rate=1.0)
    privacy = pf.Privacy(training=protection, noise_key=7)
    return run_of(rows_by_client((1, 1)), pf.FedAvg(), training, rounds=8, privacy=privacy, cohort=pf.FixedCohort(1))


def asked(transcript):
    """Rounds in which client 0 was asked."""
    return [k for k in range(len(transcript)) if 0 in transcript[k].training.members]


def test_rounds_without_the_client_are_left_out_and_every_round_has_its_own_learning_rate(noisy):
    last = asked(noisy)[-1]
    assert 1 < len(asked(noisy)) < 8
    sent = GradientInversion(client=0, method="wiener", round=last, rounds=8).sent(noisy)
    assert [one.training.learning_rate for one in sent] == [0.2 * 0.5 ** (k // 2) for k in asked(noisy)]
    for one, number in zip(sent, asked(noisy), strict=True):
        assert torch.equal(one.update, noisy[number].training.uploads[0]["update"])
        received = torch.cat([parameter.detach().flatten() for parameter in one.network.parameters()])
        assert torch.equal(received, noisy[number].broadcast["parameters"])
    assert len(GradientInversion(client=0, method="wiener", round=last).sent(noisy)) == 1


def test_several_rounds_of_a_noisy_run_are_read_with_all_nulls(noisy):
    one, many = (
        GradientInversion(client=0, method="wiener", round=asked(noisy)[-1], rounds=rounds).run(noisy, auxiliary(0))
        for rounds in (1, 8)
    )
    assert many.settings["rounds"] == 8
    assert set(many.nulls) == {"mean image", "class mean", "random image", OTHERS}
    assert not torch.equal(one.images, many.images)


def test_impossible_settings_and_messages_are_refused(lenet, perceptron):
    with pytest.raises(ConfigError, match="reads a single image, not 2"):
        GradientInversion(method="idlg", batch=2)
    with pytest.raises(ConfigError, match="attempts is 0"):
        GradientInversion(attempts=0)
    with pytest.raises(ConfigError, match="idlg takes no weight of total variation"):
        GradientInversion(method="idlg", variation=0.1)
    with pytest.raises(ConfigError, match="did you mean 'analytic'"):
        GradientInversion(method="analytical")
    with pytest.raises(ConfigError, match="0 updates of client 9"):
        GradientInversion(client=9).run(lenet, auxiliary(0))
    with pytest.raises(ConfigError, match="round 3 was not recorded"):
        GradientInversion(client=0, round=3).run(lenet, auxiliary(0))
    with pytest.raises(ConfigError, match="not fully connected on 64 pixels"):
        GradientInversion(client=0, method="analytic").run(lenet, auxiliary(0))
    with pytest.raises(ConfigError, match="dlg reads one round, not 2; choose 'wiener' or rounds = 1"):
        GradientInversion(method="dlg", rounds=2)
    with pytest.raises(ConfigError, match="wiener reads a single image, not 2"):
        GradientInversion(method="wiener", batch=2, rounds=2)
    with pytest.raises(ConfigError, match="rounds is 0"):
        GradientInversion(method="wiener", rounds=0)
    assert leaked_image(torch.nn.Module(), [torch.ones(3, 4), torch.ones(3)], (1, 2, 2)).shape == (1, 2, 2)


class Plain(nn.Module):
    """A network of one's own, which says nothing of a head."""

    def __init__(self, inputs=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 40), nn.ReLU(), nn.Linear(40, 10))

    def forward(self, inputs):
        return self.layers(inputs)


def own_images(scale, channels=1):
    """A run on arrays from 0 to ``scale``, of which client 0 holds one, and what an attack on that one is given."""
    held, rest = PIXELS.images(DIGITS.inputs[:60]), PIXELS.images(DIGITS.inputs[60:300])
    held, rest = (part.expand(-1, channels, 8, 8).mul(scale).contiguous() for part in (held, rest))
    task = pf.Task.from_arrays(
        held,
        DIGITS.targets[:60],
        clients=[0, *[1] * 59],
        test=(rest, DIGITS.targets[60:300]),
        model=lambda: Plain(64 * channels),
    )
    training = pf.LocalTraining(learning_rate=0.1 / scale, batch_size=60)
    run = pf.simulate(task, pf.FedAvg(), rounds=1, training=training, record=True)
    truth = {"images": (task.inputs[task.clients[0]] / scale).clamp(0, 1)}
    return run.transcript, Auxiliary(Records(rest, DIGITS.targets[60:300]), truth=truth)


@pytest.mark.parametrize("method", ["analytic", "spear"])
@pytest.mark.parametrize(("scale", "channels"), [(1.0, 1), (255.0, 3)])
def test_images_of_ones_own_come_back_from_a_network_of_ones_own(method, scale, channels):
    transcript, given = own_images(scale, channels)
    pixels = None if scale == 1 else Pixels((0.0,), (1 / scale,))
    result = GradientInversion(client=0, method=method, pixels=pixels).run(transcript, given)
    assert result.metrics["psnr"].value > 60
    assert ("pixels" in result.settings) == (pixels is not None)


def test_what_own_images_are_is_not_guessed_and_the_truth_has_to_be_images():
    transcript, given = own_images(255.0)
    attack = GradientInversion(client=0, method="analytic")
    with pytest.raises(ConfigError, match=r"public inputs, taken as they are, lie in \[0, 255\]"):
        attack.run(transcript, given)
    told = replace(attack, pixels=Pixels((0.0,), (1 / 255,)))
    with pytest.raises(ConfigError, match=r"truth\['images'\] lie in \[0, 255\]; give pixels in \[0, 1\]"):
        told.run(transcript, replace(given, truth={"images": given.truth["images"] * 255}))
    with pytest.raises(ConfigError, match=r"truth\['images'\] are torch.float32 \(1, 8, 8\)"):
        told.run(transcript, replace(given, truth={"images": given.truth["images"][:, 0]}))
    with pytest.raises(ConfigError, match="the truth has 1 images and gradient-inversion looks for batch = 4"):
        GradientInversion(client=0, method="spear", batch=4).run(transcript, given)
