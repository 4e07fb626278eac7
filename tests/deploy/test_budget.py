"""What one client gives away at most, and what it says of what it has given."""

from __future__ import annotations

import pytest

from privfl.deploy.budget import OwnSettings, over_all_runs
from privfl.errors import ConfigError
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import Release, pure_cost, unprotected

UNITS = {"sample": 100, "client": 4}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"number": -1}, "a client's number is -1; give its place in the list of clients, from 0"),
        ({"epsilon": 0.0}, "a client's own epsilon is 0; give a finite number above 0, or leave it out"),
        ({"epsilon": -1.0}, "own epsilon is -1; give a finite number above 0"),
        ({"epsilon": float("inf")}, "own epsilon is inf; give a finite number above 0"),
        ({"epsilon": float("nan")}, "epsilon is nan; give a number"),
        ({"delta": 0.0}, "the delta of a client's own epsilon is 0; give a number between 0 and 1"),
        ({"delta": 1.0}, "own epsilon is 1; give a number between 0 and 1"),
        ({"delta": -1e-5}, "own epsilon is -1e-05; give a number between 0 and 1"),
    ],
)
def test_own_settings_that_hold_nothing_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        OwnSettings(**{"number": 0, **settings})


def ledger(*releases):
    return Ledger(1, ("update",)).with_releases([(one, [0], 1) for one in releases])


def test_what_all_runs_came_to_is_said_of_each_unit_rounded_up_at_the_clients_own_delta():
    costs = {("sample", "server"): pure_cost(1.0001), ("client", "server"): unprotected("no noise hides clients")}
    said = over_all_runs(ledger(Release.of("update", costs)), OwnSettings(0, delta=1e-9), UNITS)
    assert "over all runs comes to epsilon = 1.01 (unit sample) and ∞ (unit client) at delta = 1e-09" in said
    assert "epsilon in own.toml for all of them" in said
