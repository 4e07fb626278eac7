"""A small reader for PhysioNet's WFDB records: headers, format 212 signals, MIT annotations.

Written from the WFDB manual pages header(5), signal(5) and annot(5); it covers what the MIT-BIH database uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources.abc import Traversable

import numpy as np
from numpy.typing import NDArray

from privfl.errors import DataError

# annot(5): the codes of beat annotations; other codes mark rhythm, noise and waves.
BEAT_CODES = {
    1: "N", 2: "L", 3: "R", 4: "a", 5: "V", 6: "F", 7: "J", 8: "A", 9: "S", 10: "E", 11: "j", 12: "/", 13: "Q",
    34: "e", 38: "f",
}  # fmt: skip
_SKIP, _LAST_ORDINARY, _NUM, _SUB, _CHN, _AUX = 59, 49, 60, 61, 62, 63


@dataclass(frozen=True)
class Header:
    """What a header file says: sampling frequency in Hz, samples per signal, and for each signal its name, zero
    level in ADC units, first sample and 16-bit checksum."""

    frequency: float
    samples: int
    leads: tuple[str, ...]
    zeros: tuple[int, ...]
    first: tuple[int, ...]
    checksums: tuple[int, ...]


def read_header(text: str, source: str) -> Header:
    """Parse a header of signals that are stored together in format 212.

    Raises:
        DataError: the header is incomplete, or names another format.
    """
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        signals = int(lines[0][1])
        frequency, samples = float(lines[0][2].split("/")[0].split("(")[0]), int(lines[0][3])
        specs = lines[1 : 1 + signals]
        if len(specs) != signals or signals == 0:
            raise IndexError(f"{signals} signals announced, {len(specs)} described")
        if any(spec[1] != "212" for spec in specs):
            raise DataError(f"{source} stores format {specs[0][1]}; only format 212 can be read.")
        return Header(
            frequency,
            samples,
            tuple(" ".join(spec[8:]) for spec in specs),
            *(tuple(int(spec[column]) for spec in specs) for column in (4, 5, 6)),
        )
    except (IndexError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} is not a complete WFDB header ({error}); fetch it again.") from error


def read_format_212(raw: bytes, header: Header, source: str) -> NDArray[np.int16]:
    """Samples in ADC units, int16 [samples, signals]: pairs of 12-bit two's complement values in three bytes.

    Raises:
        DataError: the length, a first sample or a checksum differs from the header.
    """
    count = header.samples * len(header.leads)
    if len(raw) < (count * 3 + 1) // 2:
        raise DataError(f"{source} is cut short, {len(raw):,} bytes for {count:,} samples of 12 bits; fetch it again.")
    triples = np.frombuffer(raw + bytes(-len(raw) % 3), np.uint8).reshape(-1, 3).astype(np.int16)
    pairs = np.stack([triples[:, 0] | (triples[:, 1] & 0x0F) << 8, triples[:, 2] | (triples[:, 1] & 0xF0) << 4], axis=1)
    signals = ((pairs ^ 0x800) - 0x800).reshape(-1)[:count].reshape(header.samples, len(header.leads))
    for column, lead in enumerate(header.leads):
        total = int(signals[:, column].sum(dtype=np.int64))
        if signals[0, column] != header.first[column] or (total - header.checksums[column]) % 65536:
            raise DataError(f"{source}: signal {lead} does not match the checksum in its header; fetch it again.")
    return signals


def read_annotations(raw: bytes, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample numbers int64 [A] and annotation codes int64 [A] of an MIT-format annotation file.

    Raises:
        DataError: the file ends without its end mark.
    """
    words = np.frombuffer(raw[: len(raw) // 2 * 2], "<u2").tolist()
    times: list[int] = []
    codes: list[int] = []
    now = position = 0
    while position < len(words):
        code, value = words[position] >> 10, words[position] & 0x3FF
        position += 1
        if code == 0 and value == 0:
            return np.array(times, np.int64), np.array(codes, np.int64)
        if code == _SKIP:  # a 32-bit interval, high half first
            if position + 2 > len(words):
                break
            interval = words[position] << 16 | words[position + 1]
            now += interval - (1 << 32) if interval >= 1 << 31 else interval
            position += 2
        elif code == _AUX:
            position += (value + 1) // 2
        elif code in (_NUM, _SUB, _CHN):
            pass
        elif code <= _LAST_ORDINARY:
            now += value
            times.append(now)
            codes.append(code)
        else:
            raise DataError(f"{source} holds annotation code {code}, which WFDB does not define; fetch it again.")
    raise DataError(f"{source} is cut short, it has no end mark after {len(times)} annotations; fetch it again.")


def read_record(
    folder: Traversable, record: int
) -> tuple[Header, NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Header, signals, annotation times and annotation codes of one record of ``folder``."""

    def content(suffix: str) -> bytes:
        file = folder.joinpath(f"{record}.{suffix}")
        if not file.is_file():
            raise DataError(f"{file} is missing; fetch the database again.")
        return file.read_bytes()

    header = read_header(content("hea").decode("ascii", "replace"), f"{record}.hea")
    signals = read_format_212(content("dat"), header, f"{record}.dat")
    return header, signals, *read_annotations(content("atr"), f"{record}.atr")
