"""Every step of a piece of work on the disk, and what is there when the machine stops before it, or loses its power."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

WRITES = os.O_WRONLY | os.O_RDWR
UNTOLD = ("run.lock", "timing.jsonl", "study.log")
"""What nothing is read from but seconds: an empty file that bears the lock, how long rounds took, a study's log."""
SECONDS = ("report.html",)
"""What holds the seconds of runs beside their numbers."""


@dataclass
class File:
    """A file of the watched folder: what of it survives a power cut."""

    forced: bytes = b""


@dataclass
class Disk:
    """Watches what is done below ``root`` by way of ``os``, in the order in which it is done.

    Args:
        stop: called with the number of each step before it is done; see :meth:`snapshots` and :func:`dies_at`.
    """

    root: Path
    stop: object = None
    steps: list = field(default_factory=list)
    unseen: list = field(default_factory=list)
    open_files: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)
    """For each folder, the names that survive a power cut."""

    def __post_init__(self):
        self.root = self.root.resolve()
        for path in [self.root, *self.root.rglob("*")] if self.root.exists() else []:
            if path.is_dir():
                self.names[path] = {child.name for child in path.iterdir()}
            else:
                self.files[path] = File(path.read_bytes())
        self.durable = dict(self.files)

    @contextmanager
    def watched(self):
        """Watch until the end of the block."""
        with ExitStack() as patched:
            for name in ("open", "write", "fsync", "close", "replace", "unlink", "mkdir"):
                patched.enter_context(patch.object(os, name, self._instead(name, getattr(os, name))))
            sys.addaudithook(self._audit)
            self._watching = True
            try:
                yield self
            finally:
                self._watching = False

    _watching = False

    def _audit(self, event, arguments):
        """Note writers that do not go by way of ``os``, whose steps nobody sees."""
        if event == "open" and self._watching and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
            path = arguments[0]
            if (
                isinstance(path, str | bytes | Path)
                and self._inside(path)
                and Path(os.fsdecode(path)).name not in UNTOLD
            ):
                self.unseen.append(os.fsdecode(path))

    def _inside(self, path):
        path = Path(os.fsdecode(path)).absolute()
        return path if path == self.root or self.root in path.parents else None

    def _instead(self, name, real):
        def open_(path, flags, mode=0o777, **more):
            inside = None if more else self._inside(path)
            if inside is not None and flags & WRITES:
                self._step("open", inside)
                new = not os.path.exists(inside)
                descriptor = real(path, flags, mode)
                if new:
                    self.files[inside] = File()
            else:
                descriptor = real(path, flags, mode, **more)
            if inside is not None:
                self.open_files[descriptor] = inside
            return descriptor

        def write(descriptor, content):
            if descriptor not in self.open_files:
                return real(descriptor, content)
            path, middle = self.open_files[descriptor], len(content) // 2
            written = []
            self._step("write", path, lambda: written.append(real(descriptor, content[:middle])))
            return sum(written) + real(descriptor, content[sum(written) :])

        def fsync(descriptor):
            path = self.open_files.get(descriptor)
            if path is not None:
                self._step("fsync", path)
            real(descriptor)
            if path is None:
                return
            if path.is_dir():
                self.names[path] = {child.name for child in path.iterdir()}
                for child in path.iterdir():
                    if child in self.files:
                        self.durable[child] = self.files[child]
            elif path in self.files:
                self.files[path].forced = path.read_bytes()

        def close(descriptor):
            self.open_files.pop(descriptor, None)
            real(descriptor)

        def replace(source, target):
            inside = self._inside(target)
            if inside is None:
                return real(source, target)
            self._step("replace", inside)
            real(source, target)
            self.files[inside] = self.files.pop(self._inside(source), File())
            return None

        def unlink(path, **more):
            inside = None if more else self._inside(path)
            if inside is not None and os.path.lexists(inside):
                self._step("unlink", inside)
            real(path, **more)
            self.files.pop(inside, None)

        def mkdir(path, mode=0o777, **more):
            inside = None if more else self._inside(path)
            if inside is not None and not os.path.exists(inside):
                self._step("mkdir", inside)
            real(path, mode, **more)

        made = {"open": open_, "write": write, "fsync": fsync, "close": close}
        return {**made, "replace": replace, "unlink": unlink, "mkdir": mkdir}[name]

    def _step(self, kind, path, half=None):
        self.steps.append((kind, path.relative_to(self.root).as_posix()))
        if self.stop is not None:
            self.stop(self, len(self.steps) - 1, half)

    def now(self):
        """What a program that is killed now leaves behind: {name: content}, folders without content."""
        return {name: content for name, content in tree(self.root).items() if Path(name).name not in UNTOLD}

    def after_power_cut(self, *, names):
        """What a power cut leaves behind: no content that was not forced to disk, and with ``names`` all names."""
        found = {}

        def look(folder):
            there = (
                {child.name for child in folder.iterdir()}
                if names and folder.is_dir()
                else self.names.get(folder, set())
            )
            for name in there:
                path = folder / name
                known = (self.files if names else self.durable).get(path)
                if known is not None:
                    if name not in UNTOLD:
                        found[path.relative_to(self.root).as_posix()] = known.forced
                elif path in self.names or path.is_dir():
                    found[path.relative_to(self.root).as_posix()] = None
                    look(path)

        look(self.root)
        return found


def tree(root):
    """{name: content} of all files below ``root``; folders have no content."""
    found = sorted(root.rglob("*")) if root.exists() else []
    files = {path for path in found if path.is_file()}  # a link that leads nowhere is no file
    kept = [path for path in found if path in files or path.is_dir()]
    return {path.relative_to(root).as_posix(): path.read_bytes() if path in files else None for path in kept}


def lay(root, content):
    """Make ``root`` hold ``content``, as :func:`tree` describes it, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, data in sorted(content.items()):
        path = root / name
        (path if data is None else path.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)


def result(root):
    """What a piece of work came to, without seconds and locks."""
    found = {name: content for name, content in tree(root).items() if _told(Path(name))}
    for name in found:
        if Path(name).name in SECONDS or Path(name).parent.name in ("attacks", "audits"):
            rows = json.loads(found[name]) if name.endswith(".json") else []
            rows = [rows] if isinstance(rows, dict) else rows
            found[name] = [_untimed(row) for row in rows]
        elif name.endswith(".json"):
            with contextlib.suppress(ValueError):
                found[name] = json.loads(found[name])  # the order of keys means nothing
        elif name.endswith(".npz") and found[name] and zipfile.is_zipfile(io.BytesIO(found[name])):
            with zipfile.ZipFile(io.BytesIO(found[name])) as archive:  # bytes around the parts mean nothing
                found[name] = {part: archive.read(part) for part in archive.namelist()}
    return found


def _told(path):
    """Whether a file says what came of the work: the index of a store says the same again, with seconds."""
    return path.name not in UNTOLD and path.suffix != ".lock" and not path.name.startswith("results.sqlite")


def _untimed(told):
    """``told`` without seconds, and without the digest that covers them."""
    if isinstance(told, dict):
        return {
            key: _untimed(value) for key, value in told.items() if not key.startswith("seconds") and key != "digest"
        }
    return told


def interruptions(root, work):
    """Do ``work`` once below ``root``; yields what every interruption of it would have left, each state once.

    Yields:
        (the step before which the machine stopped, how it stopped, what is there then): killed, also in the middle of a
        write, or without power, with or without the names of files that were not forced to disk.
    """
    seen, states = set(), []

    def note(how, step, state):
        key = hash(tuple(sorted((name, content) for name, content in state.items() if content is not None)))
        if key not in seen:
            seen.add(key)
            states.append((step, how, state))

    def stop(disk, number, half):
        step = disk.steps[number]
        note("killed", step, disk.now())
        note("power cut", step, disk.after_power_cut(names=False))
        note("power cut, names kept", step, disk.after_power_cut(names=True))
        if half is not None:
            half()
            note("killed in the middle", step, disk.now())

    disk = Disk(root, stop)
    with disk.watched():
        work()
    assert not disk.unseen, f"nobody sees the steps of what writes {disk.unseen}"
    assert {kind for kind, _ in disk.steps} >= {"open", "write", "fsync", "replace"}
    return disk.steps, states


def dies_at(number):
    """A ``stop`` that kills this process before step ``number``, or in the middle of it if it is a write."""

    def stop(disk, step, half):
        if step == number:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    return stop
