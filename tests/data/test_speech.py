"""Speech Commands from the official archive and from its folder: words, speakers, and sound as numbers."""

import io
import tarfile
import wave

import numpy as np
import pytest

from privfl.data.speech import WORDS
from privfl.errors import DataError
from tests.data.official import loaded, private_round, write


def recording(level, frames=16_000, rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(np.full(frames, level, "<i2").tobytes())
    return file.getvalue()


FILES = {
    "yes/aa_nohash_0.wav": recording(16384),
    "no/aa_nohash_0.wav": recording(-16384, frames=8_000),
    "no/bb_nohash_1.wav": recording(0),
    "yes/cc_nohash_0.wav": recording(8192),
    "_background_noise_/hum.wav": recording(1, frames=99),
    "testing_list.txt": b"no/bb_nohash_1.wav\n",
    "validation_list.txt": b"yes/cc_nohash_0.wav\n",
    "README.md": b"about",
}


def put(room, kind, files):
    root = room / "speech-commands/speech_commands_v0.02"
    if kind == "folder":
        for name, content in files.items():
            write(root / name, content)
        return
    write(root.with_name(f"{root.name}.tar.gz"), b"")
    with tarfile.open(root.with_name(f"{root.name}.tar.gz"), "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_words_are_classes_speakers_clients_and_the_lists_divide_the_rows(kind, tmp_path, monkeypatch):
    put(tmp_path, kind, FILES)
    data = loaded("speech-commands", monkeypatch, tmp_path, every=100)
    assert [WORDS[label] for label in data.targets] == ["no", "yes", "yes"]
    assert [WORDS[label] for label in data.test_targets] == ["no"]
    assert [data.client_names[client] for client in data.clients] == ["aa", "aa", "cc"]
    assert [data.client_names[client] for client in data.test_clients] == ["bb"]
    assert data.inputs[0, 0].tolist() == [-0.5] * 80 + [0.0] * 80
    assert private_round(data, "logistic") > 0
    judged = loaded("speech-commands", monkeypatch, tmp_path, every=100, holdout="validation")
    assert ([WORDS[label] for label in judged.test_targets], len(judged.targets)) == (["yes"], 2)


def test_other_sound_and_incomplete_archives_are_refused(tmp_path, monkeypatch):
    put(tmp_path, "folder", {**FILES, "yes/aa_nohash_0.wav": recording(0, rate=8_000)})
    with pytest.raises(DataError, match=r"yes/aa_nohash_0\.wav is not mono of 16 bits at 16 kHz"):
        loaded("speech-commands", monkeypatch, tmp_path)
    put(tmp_path, "folder", {"yes/aa_nohash_0.wav": b"RIFF"})
    with pytest.raises(DataError, match=r"yes/aa_nohash_0\.wav is no recording"):
        loaded("speech-commands", monkeypatch, tmp_path)
    put(tmp_path, "folder", {"yes/aa_nohash_0.wav": recording(0)})
    (tmp_path / "speech-commands/speech_commands_v0.02/testing_list.txt").unlink()
    with pytest.raises(DataError, match="is not Speech Commands"):
        loaded("speech-commands", monkeypatch, tmp_path)
