"""What one client gives away at most, and what it says of what it has given."""

from __future__ import annotations

from privfl.deploy.budget import OwnSettings, over_all_runs
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Release, pure_cost, unprotected

UNITS = {"sample": 100, "client": 4}


def ledger(*releases):
    return Ledger(1, ("update",)).with_releases([(one, [0], 1) for one in releases])


def test_what_all_runs_came_to_is_said_of_each_unit_rounded_up_at_the_clients_own_delta():
    costs = {("sample", "server"): pure_cost(1.0001), ("client", "server"): unprotected("no noise hides clients")}
    said = over_all_runs(ledger(Release.of("update", costs)), OwnSettings(0, delta=1e-9), UNITS)
    assert "over all runs comes to epsilon = 1.01 (unit sample) and ∞ (unit client) at delta = 1e-09" in said
    assert "epsilon in own.toml for all of them" in said
