"""Label noise: the flips have the transition matrices of the papers.

Statistical tests fix their seed; 2 × 100 cells are compared at 6 standard errors (2e-9 each, false-alarm rate 4e-7).
"""

import numpy as np
import pytest

from privfl.data.label_noise import LABEL_NOISE, PairFlip, SymmetricFlip
from privfl.errors import ConfigError, DataError

CLASSES = 10
TARGETS = np.arange(200_000) % CLASSES


@pytest.mark.parametrize("noise", [PairFlip(0.1), PairFlip(0.4), SymmetricFlip(0.2), SymmetricFlip(0.6)], ids=str)
def test_flips_follow_the_transition_matrix(noise):
    expected = noise.transition(CLASSES)
    noisy = noise.apply(TARGETS, CLASSES, np.random.default_rng(0))
    counts = np.bincount(TARGETS * CLASSES + noisy, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    trials = len(TARGETS) / CLASSES
    error = np.sqrt(expected * (1 - expected) / trials)
    assert (np.abs(counts / trials - expected) <= 6 * error).all()  # cells of probability 0 must be exactly empty


def test_transition_matrices_are_those_of_the_definitions():
    assert PairFlip(0.4).transition(3) == pytest.approx(np.array([[0.6, 0.4, 0], [0, 0.6, 0.4], [0.4, 0, 0.6]]))
    assert SymmetricFlip(0.4).transition(3) == pytest.approx(
        np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
    )


@pytest.mark.parametrize("kind", sorted(LABEL_NOISE))
def test_noise_leaves_its_input_alone_and_repeats_for_the_same_generator(kind):
    noise, before = LABEL_NOISE[kind](0.5), TARGETS.copy()
    first, again = (noise.apply(TARGETS, CLASSES, np.random.default_rng(1)) for _ in range(2))
    assert np.array_equal(TARGETS, before)
    assert np.array_equal(first, again)
    assert first.dtype == np.int64


@pytest.mark.parametrize("kind", sorted(LABEL_NOISE))
def test_rate_zero_changes_nothing_and_rate_one_changes_everything(kind):
    rng = np.random.default_rng(2)
    assert np.array_equal(LABEL_NOISE[kind](0.0).apply(TARGETS, CLASSES, rng), TARGETS)
    assert (LABEL_NOISE[kind](1.0).apply(TARGETS, CLASSES, rng) != TARGETS).all()


def test_any_shape_and_small_integer_types_are_taken():
    targets = (TARGETS[:600] % 200).astype(np.uint8).reshape(20, 30)
    noisy = PairFlip(1.0).apply(targets, CLASSES, np.random.default_rng(0))
    assert noisy.tolist() == ((targets.astype(int) + 1) % CLASSES).tolist()


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: PairFlip(-0.1), ConfigError, "rate is -0.1; give a finite number of at least 0 and at most 1"),
        (lambda: SymmetricFlip(float("nan")), ConfigError, "rate is nan"),
        (lambda: SymmetricFlip(0.1).transition(1), ConfigError, "there is one class only"),
        (lambda: PairFlip(0.1).apply(TARGETS, 9, np.random.default_rng(0)), DataError, "range from 0 to 9"),
        (lambda: PairFlip(0.1).apply(TARGETS / 2, 10, np.random.default_rng(0)), DataError, "type float64"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
