"""Heartbeats: the prepared file agrees with the published counts, and WFDB records are read bit for bit.

The encoders below are written from the WFDB manual with bit strings and share nothing with the reader.
"""

import dataclasses
import hashlib
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from privfl.data import catalog, ecg, info, load_dataset
from privfl.data.ecg import DS1, DS2, RECORDS, SYMBOLS, beats_of_records
from privfl.data.wfdb import BEAT_CODES, read_annotations, read_format_212, read_header
from privfl.errors import ConfigError, DataError

needs_room = pytest.mark.skipif(
    not os.environ.get("PRIVFL_DATA"), reason="PRIVFL_DATA does not name a folder with the real datasets"
)
CODE = {symbol: code for code, symbol in BEAT_CODES.items()}


def twelve_bits(value):
    return f"{value & 0xFFF:012b}"


def encode_212(samples):
    """signal(5): the low byte of a, the high nibbles of b and a, the low byte of b."""
    values = [int(v) for row in samples for v in row]
    values += [0] * (len(values) % 2)
    out = bytearray()
    for a, b in zip(values[::2], values[1::2], strict=True):
        a, b = twelve_bits(a), twelve_bits(b)
        out += bytes(int(bits, 2) for bits in (a[4:], b[:4] + a[:4], b[4:]))
    return bytes(out)


def encode_annotations(events):
    """annot(5): (time, code, extra) with 10-bit intervals, SKIP for longer ones, and NUM, SUB, CHN or AUX extras."""

    def word(code, value):
        return struct.pack("<H", int(f"{code:06b}{value:010b}", 2))

    out, now = b"", 0
    for time, code, extra in events:
        gap, now = time - now, time
        if not 0 <= gap < 1024:
            out += word(59, 0) + struct.pack("<HH", (gap >> 16) & 0xFFFF, gap & 0xFFFF)
            gap = 0
        out += word(code, gap)
        for kind, value in extra:
            if kind == 63:
                out += word(63, len(value)) + value + b"\0" * (len(value) % 2)
            else:
                out += word(kind, value)
    return out + word(0, 0)


def header_text(record, samples, leads, zero=1024, form=212):
    lines = [f"{record} {len(leads)} 360 {len(samples)}"]
    for column, lead in enumerate(leads):
        checksum = (int(samples[:, column].astype(int).sum()) + 32768) % 65536 - 32768
        lines.append(f"{record}.dat {form} 200 11 {zero} {samples[0, column]} {checksum} 0 {lead}")
    return "\n".join([*lines, "# 69 M 1085 1629 x1", "# Aldomet, Inderal"]) + "\n"


def write_record(folder, record, samples, leads, events):
    (folder / f"{record}.hea").write_text(header_text(record, samples, leads))
    (folder / f"{record}.dat").write_bytes(encode_212(samples))
    (folder / f"{record}.atr").write_bytes(encode_annotations(events))


def write_hash_list(folder):
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()} {f.name}" for f in sorted(folder.iterdir())]
    (folder / "SHA256SUMS.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("signals", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_format_212_is_decoded_bit_for_bit(signals, length):
    samples = np.random.default_rng(length).integers(-2048, 2048, (length, signals))
    header = read_header(header_text(100, samples, ["MLII", "V5", "V1"][:signals]), "100.hea")
    decoded = read_format_212(encode_212(samples), header, "100.dat")
    assert (decoded == samples).all()


def test_the_example_of_record_100_is_decoded_as_the_header_says():
    """Record 100 begins with 995 (MLII) and 1011 (V5), its header's first samples."""
    header = read_header(
        "100 2 360 1\n100.dat 212 200 11 1024 995 995 0 MLII\n100.dat 212 200 11 1024 1011 1011 0 V5\n", ""
    )
    assert read_format_212(bytes((0xE3, 0x33, 0xF3)), header, "100.dat").tolist() == [[995, 1011]]
    assert (header.leads, header.zeros, header.frequency) == (("MLII", "V5"), (1024, 1024), 360.0)


def test_one_flipped_bit_does_not_pass_the_checksum():
    samples = np.random.default_rng(0).integers(-2048, 2048, (50, 2))
    header = read_header(header_text(100, samples, ["MLII", "V5"]), "100.hea")
    raw = bytearray(encode_212(samples))
    raw[40] ^= 4
    with pytest.raises(DataError, match=r"100\.dat: signal (MLII|V5) does not match the checksum"):
        read_format_212(bytes(raw), header, "100.dat")
    with pytest.raises(DataError, match=r"100\.dat is cut short, 149 bytes for 100 samples"):
        read_format_212(encode_212(samples)[:-1], header, "100.dat")


def test_annotations_with_long_gaps_notes_and_fields_are_all_found():
    events = [
        (18, 28, [(63, b"(N\0")]),
        (77, 1, []),
        (1100, 5, [(60, 3), (61, 1), (62, 1)]),
        (1101, 8, []),
        (200_000, 38, [(63, b"a note of even length ")]),
        (199_990, 14, []),
        (201_013, 34, []),
    ]
    times, codes = read_annotations(encode_annotations(events), "100.atr")
    assert times.tolist() == [time for time, _, _ in events]
    assert codes.tolist() == [code for _, code, _ in events]


def test_a_cut_or_undefined_annotation_file_is_refused():
    raw = encode_annotations([(5000, 1, []), (6000, 1, [])])
    for cut in range(0, len(raw) - 1):
        with pytest.raises(DataError, match="cut short, it has no end mark"):
            read_annotations(raw[:cut], "100.atr")
    with pytest.raises(DataError, match="annotation code 55"):
        read_annotations(struct.pack("<HH", 55 << 10 | 1, 0), "100.atr")


@pytest.mark.parametrize("text", ["", "100 2 360", "100 2 360 10\n100.dat 212 200 11 1024 995 1 0 MLII\n", "a b c d"])
def test_an_incomplete_header_is_refused(text):
    with pytest.raises(DataError, match=r"100\.hea is not a complete WFDB header"):
        read_header(text, "100.hea")


def test_a_header_of_another_format_is_refused():
    with pytest.raises(DataError, match="stores format 16; only format 212"):
        read_header(header_text(100, np.zeros((2, 1), int), ["I"], form=16), "100.hea")


def sine(frequency, length, amplitude=600, phase=0.3):
    """A sampled sine in ADC units around 1024."""
    return np.rint(1024 + amplitude * np.sin(2 * np.pi * frequency * np.arange(length) / 360 + phase)).astype(int)


def test_a_beat_is_the_halved_signal_around_its_annotation(tmp_path):
    """A 5 Hz sine survives the anti-aliasing filter, so a window at 180 Hz must be that sine, within 2 ADC units of
    rounding and pass-band ripple, with the annotated sample at index 50; a 150 Hz sine must vanish."""
    slow, fast = sine(5, 4000), sine(150, 4000) - 1024
    events = [(99, 1, []), (100, 1, []), (1201, 5, []), (2000, 14, []), (3821, 3, []), (3822, 3, [])]
    write_record(tmp_path, 114, np.stack([np.full(4000, 7), slow + fast // 4], axis=1), ["V5", "MLII"], events)
    beats = beats_of_records(tmp_path, (114,))
    assert [SYMBOLS[s] for s in beats.symbols] == ["N", "V", "R"]  # too early, too late and noise are left out
    for window, annotated in zip(beats.windows, (100, 1201, 3821), strict=True):
        places = 2 * (annotated // 2 - 50 + np.arange(140))
        inner = (places >= 20) & (places < 3980)  # the filter is 21 taps long and sees zeros beyond the record's ends
        assert inner.sum() >= 130
        assert np.abs(window - (slow[places] - 1024))[inner].max() <= 2


def test_the_first_lead_is_used_where_there_is_no_mlii_and_202_counts_as_201(tmp_path):
    quiet = np.full(2000, 1024)
    for record, leads in ((102, ["V5", "V2"]), (201, ["MLII", "V1"]), (202, ["MLII", "V1"])):
        write_record(tmp_path, record, np.stack([sine(5, 2000), quiet], axis=1), leads, [(800, CODE["/"], [])])
    beats = beats_of_records(tmp_path, (102, 201, 202))
    assert (np.abs(beats.windows).max(axis=1) > 500).all()
    assert beats.records.tolist() == [102, 201, 202]
    assert beats.patients.tolist() == [102, 201, 201]


def write_database(folder, beats_each=12):
    """All 48 records, short ones, each with the same beats: mostly N, some V."""
    folder.mkdir(parents=True)
    events = [(400 * (i + 1), CODE["V"] if i % 4 == 0 else CODE["N"], []) for i in range(beats_each)]
    for record in RECORDS:
        signal = np.stack([sine(3 + record % 7, 400 * (beats_each + 1)), np.full(400 * (beats_each + 1), 900)], axis=1)
        write_record(folder, record, signal, ["MLII", "V1"], events)
    write_hash_list(folder)
    return folder


@pytest.fixture
def small_database(tmp_path, monkeypatch):
    """A data folder with an unpacked small database, whose counts the catalog is told."""
    entry = dataclasses.replace(info("mitbih"), counts={"beats": 48 * 12, "patients": 47})
    monkeypatch.setattr(catalog, "_ALL", (entry,))
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    return write_database(tmp_path / "mitbih/mit-bih-arrhythmia-database-1.0.0")


def test_the_official_zip_and_its_unpacked_folder_give_the_same_dataset(small_database):
    unpacked = load_dataset("mitbih", split="chronological")
    with zipfile.ZipFile(small_database.with_name(small_database.name + ".zip"), "w") as archive:
        for file in small_database.iterdir():
            archive.write(file, f"{small_database.name}/{file.name}")
            file.unlink()
    zipped = load_dataset("mitbih", split="chronological")
    assert (len(zipped.targets), len(zipped.test_targets)) == (48 * 12 - 47 * 2 - 3, 47 * 2 + 3)
    for field in ("inputs", "targets", "test_inputs", "test_targets", "clients", "test_clients"):
        assert torch.equal(getattr(zipped, field), getattr(unpacked, field))
    assert set(zipped.targets.tolist()) == {0, 2}


def test_a_database_is_checked_against_its_own_hash_list_and_its_published_count(small_database, monkeypatch):
    monkeypatch.setattr(catalog, "_ALL", (dataclasses.replace(info("mitbih"), counts={"beats": 109_448}),))
    with pytest.raises(DataError, match="mitbih: 576 beats were read where 109,448 are published"):
        load_dataset("mitbih")
    (small_database / "117.dat").write_bytes(b"\0" * 99)
    with pytest.raises(DataError, match=r"117\.dat: sha256 \w{64} where \w{64} is published"):
        load_dataset("mitbih")
    (small_database / "117.dat").unlink()
    with pytest.raises(DataError, match=r"117\.dat: sha256 no file"):
        load_dataset("mitbih")
    (small_database / "SHA256SUMS.txt").unlink()
    with pytest.raises(DataError, match=r"SHA256SUMS\.txt is missing"):
        load_dataset("mitbih")


def test_a_zip_that_is_cut_short_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFL_DATA", str(tmp_path))
    (tmp_path / "mitbih").mkdir()
    (tmp_path / "mitbih/mit-bih-arrhythmia-database-1.0.0.zip").write_bytes(b"PK\3\4 the rest is missing")
    with pytest.raises(DataError, match="not a complete zip archive"):
        load_dataset("mitbih")


@needs_room
def test_the_real_beats_have_the_published_counts_of_symbols_and_groups():
    data = load_dataset("mitbih", classes="symbols")
    counts = torch.bincount(torch.cat([data.targets, data.test_targets]), minlength=15).tolist()
    assert dict(zip(data.class_names, counts, strict=True)) == {
        "N": 75019, "L": 8072, "R": 7255, "A": 2546, "a": 150, "J": 83, "S": 2, "V": 7129, "F": 802, "e": 16, "j": 229,
        "E": 106, "/": 7024, "f": 982, "Q": 33,
    }  # fmt: skip
    grouped = load_dataset("mitbih")
    assert grouped.class_names == ("N", "S", "V", "F", "Q")
    assert torch.bincount(torch.cat([grouped.targets, grouped.test_targets])).tolist() == [90591, 2781, 7235, 802, 8039]
    assert "patient 202" not in grouped.client_names
    sizes = torch.bincount(torch.cat([grouped.clients, grouped.test_clients]))
    assert (int(sizes.min()), int(sizes.max())) == (1517, 4098)


@needs_room
def test_the_real_r_peak_stands_out_at_index_50_and_the_scale_is_millivolts():
    data = load_dataset("mitbih")
    millivolts = data.inputs[data.targets == 0][:, 0] * 0.5 - 0.3
    average = millivolts.mean(0)
    assert abs(int(average.argmax()) - 50) <= 1
    assert 0.5 < float(average.max()) < 1.5
    assert (millivolts * 200 - (millivolts * 200).round()).abs().max() < 1e-3


@needs_room
def test_the_splits_divide_the_beats_as_they_say():
    drawn, late = load_dataset("mitbih"), load_dataset("mitbih", split="chronological")
    for data in (drawn, late):
        train, test = torch.bincount(data.clients), torch.bincount(data.test_clients)
        assert torch.equal(test, torch.round((train + test) * 0.2).long())
    others = load_dataset("mitbih", split="de-chazal")
    with np.load(Path(os.environ["PRIVFL_DATA"]) / "mitbih/mitbih_beats_180hz.npz") as arrays:
        record, group = arrays["record"], arrays["aami"]
    for records, targets in ((DS1, others.targets), (DS2, others.test_targets)):
        assert torch.bincount(targets).tolist() == np.bincount(group[np.isin(record, records)]).tolist()
    trained = {others.client_names[c] for c in others.clients.unique().tolist()}
    tested = {others.client_names[c] for c in others.test_clients.unique().tolist()}
    assert trained == {f"patient {record}" for record in DS1}
    assert tested == {f"patient {201 if record == 202 else record}" for record in DS2}
    assert trained & tested == {"patient 201"}


def test_the_inter_patient_division_is_disjoint_and_leaves_out_the_paced_records():
    assert len(DS1) == len(DS2) == 22
    assert not set(DS1) & set(DS2)
    assert set(RECORDS) - set(DS1) - set(DS2) == {102, 104, 107, 217}
    assert len(RECORDS) == 48
    assert sorted("".join(ecg.AAMI.values())) == sorted(SYMBOLS)


def test_unknown_options_are_refused(small_database):
    with pytest.raises(ConfigError, match="unknown split 'dechazal': did you mean 'de-chazal'"):
        load_dataset("mitbih", split="dechazal")
    with pytest.raises(ConfigError, match="unknown classes '12'"):
        load_dataset("mitbih", classes="12")
