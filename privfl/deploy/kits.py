"""Certificates for all parties at once, by FLARE's own provisioning: for a rehearsal on one machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from privfl.errors import ConfigError, brief
from privfl.files import write_whole

SERVER = "server"
KIT = "startup"
PROJECT = "project.yml"
_BUILDERS = """builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: tcp}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
SECONDS = 120.0


def project(names: Sequence[str]) -> str:
    """What FLARE's provisioning reads: a server called ``server`` and clients called as they are ``names``."""
    ports = "server, fed_learn_port: 8102, admin_port: 8103"
    people = [f"  - {{name: {name}, org: privfl, type: {ports if name == SERVER else 'client'}}}" for name in names]
    head = "api_version: 3\nname: federation\ndescription: one federation of privfl\nparticipants:\n"
    return head + "\n".join(people) + "\n" + _BUILDERS


def provision(folders: Mapping[str, Path]) -> None:
    """Put the folder ``startup`` of a kit into the folder of each party, by the name that its certificate bears.

    Raises:
        ConfigError: FLARE is not installed, or refuses.
    """
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / PROJECT
        write_whole(file, project(list(folders)).encode())
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(file), "-w", room]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"FLARE's provisioning did not end within {SECONDS:g} s; try again") from error
        made = Path(room) / "federation" / "prod_00"
        if done.returncode or not made.is_dir():
            said = brief((done.stderr or done.stdout).strip(), 200)
            raise ConfigError(f"FLARE's provisioning failed ({said}); pip install 'privfl[federation]'")
        for name, folder in folders.items():
            shutil.copytree(made / name / KIT, folder / KIT)
