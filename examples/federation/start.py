"""Four hospitals and a server as five processes on this machine: python examples/federation/start.py --out federation

Needs pip install 'privfl[federation]'. Every hospital gets a folder with its own patients, keys and budget.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

EXPERIMENT = Path(__file__).with_name("experiment.toml")
PRIVFL = [sys.executable, "-m", "privfl", "deploy"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Four hospitals and a server as five processes on this machine.")
    parser.add_argument("--out", type=Path, default=Path("federation"), help="a new folder")
    parser.add_argument("--port", type=int, default=8102)
    parser.add_argument("--epsilon", type=float, default=5.0, help="each hospital's own budget")
    given = parser.parse_args()
    url = f"stcp://127.0.0.1:{given.port}"
    split = ["split", str(EXPERIMENT), "--out", str(given.out), "--url", url, "--epsilon", str(given.epsilon)]
    if (code := subprocess.run([*PRIVFL, *split], check=False).returncode) != 0:
        return code
    hospitals = sorted(given.out.glob("client-*"))
    processes = [subprocess.Popen([*PRIVFL, "client", str(folder)]) for folder in hospitals]
    try:
        return subprocess.run([*PRIVFL, "server", str(given.out / "server")], check=False).returncode
    finally:
        for process in processes:
            try:
                process.wait(timeout=10)  # they end by themselves when the run has ended
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
