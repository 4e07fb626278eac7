"""A mask is the ChaCha20 key stream of its seed, added word by word; threads and pieces change nothing."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from privfl.errors import ConfigError
from privfl.privacy.secagg.masks import add_many

SEED = bytes(range(32))
LENGTHS = (1, 2, 15, 16, 17, 32767, 32768, 32769, 98_305)
WORDS = (np.uint32, np.uint64)


def key_stream(seed: bytes, length: int, word) -> np.ndarray:
    """The mask from one call of the cipher, read word by word."""
    size = np.dtype(word).itemsize
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(size * length))
    return np.frombuffer(stream, np.dtype(word).newbyteorder("<"))


def random_words(length: int, word) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 2 ** (8 * np.dtype(word).itemsize), length, word)


def test_the_mask_of_the_zero_seed_is_the_key_stream_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1."""
    published = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    mask = np.zeros(16, np.uint32)
    add_many(mask, [(bytes(32), 1)])
    assert mask.astype("<u4").tobytes() == published


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_masks_are_added_and_subtracted_modulo_the_word(length: int, word) -> None:
    start = random_words(length, word)
    target = start.copy()
    add_many(target, [(SEED, 1)])
    assert np.array_equal(target, start + key_stream(SEED, length, word))
    add_many(target, [(SEED, -1)])
    assert np.array_equal(target, start)
    add_many(target, [(SEED, -1)])
    assert np.array_equal(target, start - key_stream(SEED, length, word))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_many_masks_are_those_masks_one_by_one_whatever_the_threads(length: int, word, threads: int) -> None:
    masks = [(SEED, 1), (bytes(32), -1), (SEED[::-1], -1), (SEED, 1)]
    target, expected = random_words(length, word), random_words(length, word)
    add_many(target, masks, threads)
    for seed, sign in masks:
        expected += key_stream(seed, length, word) * word(sign % 2 ** (8 * expected.itemsize))
    assert np.array_equal(target, expected)


def test_more_masks_than_are_added_side_by_side() -> None:
    masks = [(bytes([place]) * 32, 1 if place % 3 else -1) for place in range(150)]
    target, expected = np.zeros(40_000, np.uint32), np.zeros(40_000, np.uint32)
    add_many(target, masks, 2)
    for seed, sign in masks:
        expected += key_stream(seed, 40_000, np.uint32) * np.uint32(sign % 2**32)
    assert np.array_equal(target, expected)


def test_no_masks_and_no_words_change_nothing() -> None:
    target = random_words(5, np.uint32)
    add_many(target, [])
    assert np.array_equal(target, random_words(5, np.uint32))
    add_many(np.zeros(0, np.uint64), [(SEED, 1)], 4)


def test_every_bit_of_the_seed_changes_the_mask() -> None:
    seen = set()
    for bit in range(256):
        mask = np.zeros(2, np.uint64)
        add_many(mask, [((int.from_bytes(SEED, "big") ^ 1 << bit).to_bytes(32, "big"), 1)])
        seen.add(mask.tobytes())
    assert len(seen) == 256


@pytest.mark.parametrize(
    ("target", "masks", "threads"),
    [
        (np.zeros(4, np.int32), [(SEED, 1)], 1),
        (np.zeros(4, np.float32), [(SEED, 1)], 1),
        (np.zeros((2, 2), np.uint32), [(SEED, 1)], 1),
        (np.zeros(8, np.uint32)[::2], [(SEED, 1)], 1),
        (np.zeros(4, ">u4"), [(SEED, 1)], 1),
        (np.zeros(4, np.uint32), [(SEED, 1), (SEED[:4], 1)], 1),
        (np.zeros(4, np.uint32), [(SEED, 1), (12345, 1)], 1),
        (np.zeros(4, np.uint32), [(SEED, 1), (SEED, 0)], 1),
        (np.zeros(4, np.uint32), [(SEED, 1), (SEED, 2)], 1),
        (np.zeros(4, np.uint32), [(SEED, 1)], 0),
    ],
)
def test_what_cannot_be_masked_is_refused_untouched(target, masks, threads: int) -> None:
    with pytest.raises(ConfigError):
        add_many(target, masks, threads)
    assert not target.any()
