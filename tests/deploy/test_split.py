"""An experiment's data dealt out to folders: who gets what."""

from __future__ import annotations

import pytest

from privfl.deploy.split import STATE, split
from privfl.errors import ConfigError
from tests.deploy.rehearsal import CLIENTS, Rehearsal, experiment


def test_every_client_has_an_account_from_the_start_and_the_server_none(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment())
    accounts = {name for name, folder in rehearsal.folders.items() if (folder / STATE / "account.json").exists()}
    assert accounts == {f"client-{number}" for number in range(CLIENTS)}
    agreed = rehearsal.federation
    assert agreed.clients == tuple(rehearsal.client(number).key.public.hex() for number in range(CLIENTS))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_a_budget_that_is_none_is_refused_before_any_folder_is_made(epsilon, tmp_path):
    asked = experiment()
    with pytest.raises(ConfigError, match=f"epsilon is {epsilon:g}; give a"):
        split(asked, asked.to_toml(), tmp_path / "federation", url="none", epsilon=epsilon, seconds=1.0)
    assert not (tmp_path / "federation").exists()
