"""What observers see of a run that goes on for more rounds is written down as of one that was planned so long."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError, PrivflError
from privfl.federation.availability import Availability
from privfl.simulation.run_directory import EXTENSION, RunDirectory
from privfl.simulation.transcript import encode_round, read_round
from tests.commands.command_line import privfl
from tests.simulation.extended_runs import NOISY, SETTINGS, Stopped, stop_after, train

DIGITS = NOISY | {"task": pf.load("digits", partition=pf.IID(clients=3), model="logistic"), "record": True}


def seen(run):
    return {path.name: path.read_bytes() for path in sorted((run / "transcript").iterdir())}


@pytest.mark.parametrize("record", [True, ("server",), ("public",)], ids=["both", "server", "public"])
@pytest.mark.parametrize("name", SETTINGS)
def test_its_transcript_goes_on_as_well(tmp_path, name, record):
    settings = SETTINGS[name] | {"record": record}
    train(tmp_path / "whole", 3, **settings)
    train(tmp_path / "longer", 1, **settings)
    longer = train(tmp_path / "longer", 3, resume=True, **settings)
    assert seen(tmp_path / "longer") == seen(tmp_path / "whole")
    assert len(longer.transcript) == longer.transcript.facts.rounds == 3
    with pytest.raises(Stopped):
        train(tmp_path / "cut", 2, callbacks=stop_after(0), **settings)
    with pytest.raises(Stopped):
        train(tmp_path / "cut", 3, resume=True, callbacks=stop_after(1), **settings)
    train(tmp_path / "cut", 3, resume=True, **settings)
    assert seen(tmp_path / "cut") == seen(tmp_path / "whole")


def test_what_was_seen_of_both_parts_of_a_run_with_two_keys_is_attacked(tmp_path):
    pf.simulate(**DIGITS, rounds=1, out=tmp_path / "run")
    pf.simulate(**DIGITS, rounds=2, out=tmp_path / "run", resume=True)
    file = tmp_path / "attack.toml"
    file.write_text(f'run = "{(tmp_path / "run").as_posix()}"\n[[attack]]\nname = "label-counts"\n')
    code, out, err = privfl("attack", file)
    assert (code, err) == (0, "")
    assert "label-counts" in out


def damaged_transcript(run):
    (run / "transcript" / "round-000001.npz").write_bytes(b"half a round")


def foreign_transcript(run):
    facts = json.loads((run / "transcript" / "facts.json").read_text())
    told = (run / "transcript" / "round-000000.npz").read_bytes()
    assert facts["classes"] == 3
    (run / "transcript" / "round-000001.npz").write_bytes(told)


def unreadable_engine(run):
    (run / "engine.json").write_text("{}")


def timing_in_the_way(run):
    (run / "timing.jsonl").unlink()
    (run / "timing.jsonl").mkdir()


def facts_in_the_way(run):
    (run / "transcript" / "facts.json").unlink()
    (run / "transcript" / "facts.json").mkdir()


def rounds_lost(run):
    (run / "transcript" / "round-000002.npz").unlink()


@pytest.mark.parametrize(
    "harm",
    [damaged_transcript, foreign_transcript, unreadable_engine, timing_in_the_way, facts_in_the_way, rounds_lost],
)
@pytest.mark.parametrize("moment", ["ended", "in flight"])
def test_what_is_refused_leaves_the_run_and_its_statement_as_they_were(tmp_path, harm, moment):
    settings, run = NOISY | {"record": True}, tmp_path / "run"
    if moment == "ended":
        train(run, 3, **settings)
    else:
        with pytest.raises(Stopped):
            train(run, 4, callbacks=stop_after(3), **settings)
    harm(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(PrivflError):
        train(run, 6, resume=True, **settings)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@dataclass(frozen=True)
class Ending(Availability):
    """Nobody can be reached after three rounds."""

    def _mask(self, round, clients, seed):
        return np.full(clients, round < 3)


def test_a_round_that_cannot_begin_leaves_the_statement_of_those_before_it(tmp_path):
    settings, run = NOISY | {"record": True, "availability": Ending()}, tmp_path / "run"
    told = train(run, 3, **settings).statement.to_json()
    with pytest.raises(ConfigError, match="can be reached in round 3"):
        train(run, 6, resume=True, **settings)
    summary, statement, metrics = RunDirectory(run).ending()
    assert (summary["rounds"], statement.to_json(), len(metrics)) == (3, told, 3)
    assert not (run / "noise.key").exists()
    assert not (run / EXTENSION).exists()


def as_recorded_before(run):
    """Name the facts in all rounds as the version before did, which hashed the number of rounds too."""
    folder = run / "transcript"
    digest = hashlib.sha256((folder / "facts.json").read_bytes()).hexdigest()
    for path in folder.glob("round-*.npz"):
        path.write_bytes(encode_round(read_round(path), digest))


def test_a_transcript_that_an_earlier_version_recorded_is_read_and_goes_on(tmp_path):
    settings, run = NOISY | {"record": True}, tmp_path / "run"
    train(run, 2, **settings)
    as_recorded_before(run)
    assert len(list(pf.Transcript.load(run))) == 2
    with pytest.raises(Stopped):
        train(run, 4, resume=True, callbacks=stop_after(2), **settings)
    assert len(list(train(run, 5, resume=True, **settings).transcript)) == 5
    assert len(list(train(run, 6, resume=True, **settings).transcript)) == 6
    assert [one.number for one in pf.Transcript.load(run)] == list(range(6))
    assert pf.Transcript.load(run).facts.rounds == 6
