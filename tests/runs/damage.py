"""Damage to the files of a run: what disks, careless hands and bad copies do, each drawn from a seed."""

import io
import json
import random
import shutil
import zipfile

import numpy as np

ODD = (None, [], {}, "", "x", -1, 10**30, 1e300, True, [[]], {"a": None}, float("nan"), float("inf"))


def flip(draw, path):
    """One bit is another."""
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(draw, path):
    """The end is missing."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def zeros(draw, path):
    """A block is zeros, as after a power cut."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content) + 1)
    end = min(len(content), start + draw.choice([1, 16, 512]))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


def garbage(draw, path):
    """Something else stands there, or behind."""
    path.write_bytes(draw.choice([b"", path.read_bytes()]) + draw.randbytes(draw.choice([1, 40, 3000])))


def remove(draw, path):
    """It is gone."""
    path.unlink()


def folder(draw, path):
    """A folder bears its name."""
    path.unlink()
    path.mkdir()


def link(draw, path):
    """It is a link: to a copy of itself, or to nothing."""
    other = path.with_name(f"{path.name}.elsewhere")
    if draw.random() < 0.5:
        shutil.copy(path, other)
    path.unlink()
    path.symlink_to(other)


def swap(draw, path):
    """It holds what another file of the run holds."""
    others = sorted(one for one in path.parent.rglob("*") if one.is_file() and one != path)
    if others:
        shutil.copy(draw.choice(others), path)


def rename(draw, path):
    """It has another name, such as round-abc.npz."""
    path.rename(path.with_name(draw.choice(["round-abc.npz", "round-000009.npz", "latest", f"{path.name}.bak"])))


def digit(draw, path):
    """One digit is another."""
    content = bytearray(path.read_bytes())
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if places:
        content[draw.choice(places)] = 48 + draw.randrange(10)
    path.write_bytes(content)


def lines(draw, path):
    """Lines are doubled, lost, or in another order."""
    found = path.read_bytes().splitlines(keepends=True)
    how = draw.randrange(3)
    if found and how == 0:
        found.insert(draw.randrange(len(found)), draw.choice(found))
    elif found and how == 1:
        del found[draw.randrange(len(found))]
    else:
        draw.shuffle(found)
    path.write_bytes(b"".join(found))


def odd(draw, path):
    """A value in its JSON is missing or odd, or the whole is."""
    try:
        content = json.loads(path.read_bytes().splitlines()[0] if path.suffix == ".jsonl" else path.read_bytes())
    except (ValueError, IndexError):
        return
    if draw.random() < 0.1:
        path.write_text(draw.choice(["[" * 20_000, json.dumps(draw.choice(ODD)), '{"round": ' + "9" * 5000 + "}"]))
        return
    path.write_text(json.dumps(_changed(draw, content)))


def _changed(draw, content):
    """``content`` with one value changed, or one key lost, somewhere in it."""
    inner = (
        [key for key, value in content.items() if isinstance(value, dict) and value]
        if isinstance(content, dict)
        else []
    )
    if not isinstance(content, dict) or not content:
        return draw.choice(ODD)
    if inner and draw.random() < 0.5:
        key = draw.choice(inner)
        return {**content, key: _changed(draw, content[key])}
    key = draw.choice(sorted(content))
    if draw.random() < 0.3:
        return {name: value for name, value in content.items() if name != key}
    return {**content, key: draw.choice(ODD)}


def parts(draw, path):
    """An archive is sound, and a part of it is missing, not finite, of another shape, or described otherwise."""
    if path.suffix != ".npz":
        return flip(draw, path)
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(found))
    how = draw.randrange(5)
    if how == 0:
        del found[name]
    elif how == 1:
        found[name] = _npy(np.full(draw.choice([1, 7, 10_000]), np.nan, np.float32))
    elif how == 2:
        found[name] = _npy(np.zeros((0, 3), np.int64))
    elif how == 3:
        other = draw.choice(sorted(found))
        found[name], found[other] = found[other], found[name]
    elif "meta.npy" in found:
        meta = json.loads(np.load(io.BytesIO(found["meta.npy"])).tobytes())
        found["meta.npy"] = _npy(np.frombuffer(json.dumps(_changed(draw, meta)).encode(), np.uint8))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in found.items():
            archive.writestr(name, content)
    return None


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


DAMAGES = (flip, cut, zeros, garbage, remove, folder, link, swap, rename, digit, lines, odd, parts)


def damage(root, seed):
    """Damage one file below ``root``; returns (what was done, the file)."""
    draw = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = draw.choice(files)
    how = draw.choice(DAMAGES)
    how(draw, path)
    return how.__name__, path.relative_to(root).as_posix()


def sentence(error):
    """Whether ``error`` tells its reader in one sentence what is wrong."""
    told = str(error)
    return bool(told) and "\n" not in told and len(told) < 1000
