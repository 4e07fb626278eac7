"""Who broke the protocol of a secure sum takes part in no later one, also after the server was killed."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from privfl.deploy import secure as secure_module
from privfl.deploy.convictions import CONVICTED, LEFT_OUT, Convictions
from privfl.deploy.messages import opened
from privfl.deploy.transport import Loopback
from privfl.errors import DataError
from privfl.privacy.secagg.client import Client
from tests.deploy.rehearsal import CLIENTS, Rehearsal, experiment
from tests.privacy.secagg import saboteurs

SECURE = {"update": [{"name": "secure-sum"}]}
SAID = "client {} broke the protocol of round {}'s secure sum and took part in no later one: "


def test_a_conviction_counts_from_the_next_round_on_and_outlives_the_process(tmp_path):
    one = Convictions(tmp_path)
    assert one.add({}, 0) == one.notes == []
    assert not (tmp_path / CONVICTED).exists()
    said = [SAID.format(3, 2) + "its share was false"]
    assert one.add({3: "its share was false"}, 2) == said
    assert one.add({3: "something else"}, 4) == []
    for told in (one, Convictions(tmp_path)):
        assert told.notes == said
        assert [told.before(round) for round in (1, 2, 3, 9)] == [{}, {}, {3: LEFT_OUT}, {3: LEFT_OUT}]


DAMAGED = ["{", "{}", '{"clients": [1]}', '{"clients": {"one": [0, ""]}}', '{"clients": {"1": 0}}', "[1]"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_named(content, tmp_path):
    (tmp_path / CONVICTED).write_text(content)
    with pytest.raises(DataError, match=r"convicted\.json"):
        Convictions(tmp_path)


class Watching(Loopback):
    """Counts what client 1 is asked for in each round's secure sum; the server ends where it is told to."""

    def __init__(self, clients, asked, server, until=None):
        super().__init__(clients)
        self.told, self.server, self.until = asked, server, until

    def ask(self, requests, seconds, genuine):
        for client, request in requests.items():
            meta = opened(request, self.server).meta
            if client == 1 and meta["kind"] in ("secure", "train"):
                self.told[meta["round"], meta["kind"], meta.get("leg")] += 1
            if meta["kind"] == "train" and meta["round"] == self.until:
                raise KeyboardInterrupt
        return super().ask(requests, seconds, genuine)


@pytest.mark.parametrize("until", [None, 1])
@pytest.mark.parametrize("liar", [saboteurs.UnfittingShares, saboteurs.GarbledLetters])
def test_a_liar_ends_nothing_after_its_round_and_the_others_go_on(liar, until, tmp_path, monkeypatch):
    uniform = {"name": "fedavg", "weighting": "uniform"}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=4, privacy=SECURE, algorithm=uniform))
    monkeypatch.setattr(
        secure_module, "Client", lambda *given, **more: (liar if given[1] == 1 else Client)(*given, **more)
    )
    clients, server, asked = rehearsal.clients(), bytes.fromhex(rehearsal.federation.server), Counter()
    if until is not None:
        with pytest.raises(KeyboardInterrupt):
            rehearsal.run(Watching(clients, asked, server, until))
    found = rehearsal.run(Watching(clients, asked, server), resume=True)
    ends = liar in saboteurs.ENDING
    assert {round for round, _, leg in asked if leg is not None} == {0}  # it is asked for no leg of a later sum
    assert [line["clients"] for line in found.metrics] == [0 if ends else CLIENTS - 1] + [CLIENTS - 1] * 3
    assert found.summary["dropped"][LEFT_OUT] == 3
    assert json.loads((rehearsal.root / "run" / CONVICTED).read_text())["clients"].keys() == {"1"}
    notes = [one for one in found.summary["warnings"] if one.startswith("client 1 broke the protocol")]
    assert [one[: len(SAID.format(1, 0))] for one in notes] == [SAID.format(1, 0)]
