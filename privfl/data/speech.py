"""Speech Commands: one word from a second of sound, each speaker a client."""

from __future__ import annotations

import io
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.data.dataset import Dataset
from privfl.data.entry import DatasetInfo
from privfl.data.files import Located
from privfl.errors import DataError
from privfl.validation import check_choice, check_count

WORDS = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy",
    "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop",
    "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)  # fmt: skip
SAMPLES = 16_000
Sound = NDArray[np.float32]


def load_speech_commands(
    entry: DatasetInfo, located: Located, *, seed: int, every: int = 2, holdout: str = "test"
) -> Dataset:
    """Speech Commands v0.02, float32 [N, 1, 16000 / every] in −1..1, 35 words, a speaker a client.

    A recording that is shorter than a second is filled with silence. The speaker is the part of the file's name before
    ``_nohash_``. Speakers of the held-out part have no training rows: the official lists divide by speaker.

    Args:
        entry: catalog entry.
        located: its files.
        seed: not used, the division is published.
        every: samples whose mean is one number; 2 makes 8 kHz of 16.
        holdout: ``test`` trains on all but ``testing_list.txt``; ``validation`` leaves both lists out and is judged by
            ``validation_list.txt``.
    """
    check_count("every", every)
    check_choice("holdout", holdout, ("test", "validation"))
    (path,) = located.paths.values()
    lists: dict[str, set[str]] = {}
    sounds: dict[str, Sound] = {}
    try:
        for name, content in _archived(path) if located.format == "tar" else _unpacked(path):
            if name.endswith(".txt"):
                lists[name] = set(content.decode("utf-8").split())
            else:
                sounds[name] = _sound(path, name, content, every)
        testing, validation = lists["testing_list.txt"], lists["validation_list.txt"]
    except (OSError, EOFError, KeyError, UnicodeDecodeError, tarfile.TarError) as error:
        raise DataError(f"{path} is not Speech Commands ({error!r}); fetch it again.") from error
    entry.check_counts(recordings=len(sounds))
    held = testing if holdout == "test" else validation
    train = [name for name in sorted(sounds) if name not in held and not (holdout == "validation" and name in testing)]
    test = [name for name in sorted(sounds) if name in held]
    speakers = dict.fromkeys(_speaker(name) for name in (*train, *test))
    number = {speaker: place for place, speaker in enumerate(speakers)}

    def part(names: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        rows = np.stack([sounds[name] for name in names])[:, None] if names else np.empty((0, 1, 1), np.float32)
        labels = [WORDS.index(name.split("/")[0]) for name in names]
        return torch.from_numpy(rows), torch.tensor(labels), torch.tensor([number[_speaker(name)] for name in names])

    (x, y, owner), (test_x, test_y, test_owner) = part(train), part(test)
    return Dataset(
        entry.name, x, y, test_x, test_y, len(WORDS), owner, test_owner,
        client_names=tuple(speakers), class_names=WORDS,
    )  # fmt: skip


def _speaker(name: str) -> str:
    return name.split("/")[1].split("_nohash_")[0]


def _wanted(name: str) -> bool:
    """Whether ``name`` is one of the two lists, or a recording of a word."""
    parts = name.split("/")
    spoken = len(parts) == 2 and parts[0] in WORDS and "_nohash_" in name and name.endswith(".wav")
    return spoken or name in ("testing_list.txt", "validation_list.txt")


def _archived(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of what is wanted of the official archive, in its order."""
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isfile() and _wanted(name):
                file = archive.extractfile(member)
                assert file is not None
                yield name, file.read()


def _unpacked(path: Path) -> Iterator[tuple[str, bytes]]:
    """The same of the folder that it unpacks to."""
    for file in (*sorted(path.glob("*.txt")), *(one for word in WORDS for one in sorted((path / word).glob("*.wav")))):
        name = file.relative_to(path).as_posix()
        if _wanted(name):
            yield name, file.read_bytes()


def _sound(path: Path, name: str, content: bytes, every: int) -> Sound:
    """One recording, float32 [16000 // every] in −1..1."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, SAMPLES):
                raise DataError(f"{path}: {name} is not mono of 16 bits at 16 kHz; fetch it again.")
            heard = np.frombuffer(file.readframes(SAMPLES), "<i2").astype(np.float32) / 32768
    except (wave.Error, EOFError) as error:
        raise DataError(f"{path}: {name} is no recording ({error}); fetch it again.") from error
    whole = np.zeros(SAMPLES - SAMPLES % every, np.float32)
    whole[: len(heard)] = heard[: len(whole)]
    mean: Sound = whole.reshape(-1, every).mean(1)
    return mean
