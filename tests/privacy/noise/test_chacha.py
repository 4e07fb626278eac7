"""The key stream in integer operations of torch is the cipher's, for many keys, at any position, under any nonce."""

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from privfl.privacy.noise.chacha import key_stream

KEYS = [bytes(range(i, i + 32)) for i in range(3)] + [bytes([255] * 32)]


def cipher_words(key, block, nonce, blocks):
    start = block.to_bytes(4, "little") + bytes(8) + nonce.to_bytes(4, "little")
    return np.frombuffer(Cipher(ChaCha20(key, start), None).encryptor().update(bytes(64 * blocks)), "<i8")


def test_words_are_those_of_the_cipher():
    keys = torch.from_numpy(np.stack([np.frombuffer(key, "<i4") for key in KEYS]))
    starts = [0, 7, 100_000, 2**31 - 40]
    for skipped, nonces in ((0, (0, 1, 3)), (5, (2,))):
        for nonce, words in zip(nonces, key_stream(keys, torch.tensor(starts), skipped, 33, nonces), strict=True):
            for key, start, row in zip(KEYS, starts, words, strict=True):
                assert np.array_equal(row.numpy(), cipher_words(key, start + skipped, nonce, 33))
