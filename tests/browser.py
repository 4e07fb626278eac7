"""A headless Chromium to look at pages with, driven over a pipe by its DevTools protocol; no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
LAUNCHER = """
import os, sys
read, write = (os.dup(int(number)) for number in sys.argv[1:3])
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
read, write = os.dup(read), os.dup(write)
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts Chromium with the ends of its pipes as the file descriptors 3 and 4, on which it speaks the protocol."""
PATIENCE = 60.0
"""Seconds that an answer may take."""


class Browser:
    """One tab. ``events`` collects everything that the browser told unasked, console messages and requests included."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._number, self._rest, self._session = read, write, 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the browser do ``method`` and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return dict(told["result"])
            self.events.append(told)

    def open(self, page: Path, *, width: int = 1000, height: int = 800, dark: bool = False, media: str = "") -> float:
        """Show ``page`` in a window of this size; returns the milliseconds from the start until it was loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} was not loaded within {PATIENCE:g} s")
            self.events.append(self._next())
        return float(self.js("performance.timing.loadEventEnd - performance.timing.navigationStart"))

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"])
        return told["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and let go of a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is to be seen as PNG, the ``whole`` page or the window."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def pdf(self, path: Path) -> None:
        """Print the page on A4 paper."""
        told = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def complaints(self) -> list[str]:
        """What the page wrote to the console, raised, or was denied."""
        bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(one) for one in self.events if one.get("method") in bad]

    def requests(self) -> list[str]:
        """Everything that was fetched, or tried to be, besides data that lies in the page."""
        sent = (
            one["params"]["request"]["url"] for one in self.events if one.get("method") == "Network.requestWillBeSent"
        )
        return [url for url in sent if not url.startswith("data:")]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], PATIENCE)[0]:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE:g} s")
            if not (chunk := os.read(self._read, 1 << 20)):
                raise RuntimeError("Chromium is gone")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium with one empty tab, ended with the block."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [CHROMIUM, *options, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCHER, str(their_read), str(their_write), *arguments],
            pass_fds=(their_read, their_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        try:
            yield Browser(our_read, our_write)
        finally:
            os.close(our_write)
            os.close(our_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
