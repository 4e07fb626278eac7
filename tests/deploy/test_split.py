"""An experiment's data dealt out to folders: who gets what."""

from __future__ import annotations

from privfl.deploy.split import STATE
from tests.deploy.rehearsal import CLIENTS, Rehearsal, experiment


def test_every_client_has_an_account_from_the_start_and_the_server_none(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment())
    accounts = {name for name, folder in rehearsal.folders.items() if (folder / STATE / "account.json").exists()}
    assert accounts == {f"client-{number}" for number in range(CLIENTS)}
    agreed = rehearsal.federation
    assert agreed.clients == tuple(rehearsal.client(number).key.public.hex() for number in range(CLIENTS))
