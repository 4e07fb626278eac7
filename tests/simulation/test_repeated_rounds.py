"""A round that is computed again comes out as before, or nothing is claimed of what one noise covered twice."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch.nn.functional as F

import privfl as pf
from privfl.simulation.repeated_rounds import REPEATED_NOISE, ROUNDS, RepeatedRounds, read_rounds
from privfl.simulation.run_directory import CHECKPOINT, EXTENSION, RunDirectory
from tests.runs.disk import Disk, lay, tree

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
PRIVACY = {
    "dp-sgd": pf.Privacy(training=pf.DPSGD(noise_multiplier=4.0, sample_rate=1.0)),
    "at clients": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(4.0, at="client"))),
    "at the server": pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(4.0))),
}


def plain(network, inputs, targets):
    return F.cross_entropy(network(inputs), targets, reduction="none")


def shaken(network, inputs, targets):
    shift = 0.5 * np.random.default_rng().normal() if network.training else 0.0
    return plain(network, inputs + shift, targets)


def ran(out, loss, privacy, *, stop_after=None, resume=False, rounds=3, checkpoint_seconds=600.0, record=False):
    task = pf.Task.from_arrays(X, Y, test=(X, Y), clients=np.arange(60) // 20, classes=2, model="logistic", loss=loss)

    def stop(simulation, line):
        if line["round"] == stop_after:
            raise KeyboardInterrupt

    return pf.simulate(
        task,
        pf.FedAvg("uniform"),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.5, batch_size=20),
        privacy=privacy,
        out=out,
        record=record,
        resume=resume,
        callbacks=[stop],
        execution=pf.Execution(engine="loop", workers=1, checkpoint_seconds=checkpoint_seconds),
    )


def interrupted(out, *given, **more):
    with pytest.raises(KeyboardInterrupt):
        ran(out, *given, stop_after=1, **more)
    return (out / ROUNDS).read_text(encoding="utf-8").splitlines()


def epsilon(run):
    return run.statement.cell("sample", "public").epsilon


@pytest.mark.parametrize("kind", PRIVACY)
def test_what_comes_out_otherwise_under_the_same_noise_takes_the_claims_away(kind, tmp_path):
    assert len(interrupted(tmp_path, shaken, PRIVACY[kind])) == 2
    run = ran(tmp_path, shaken, PRIVACY[kind], resume=True)
    assert epsilon(run) == np.inf
    text = " ".join(str(run.statement).split())
    assert REPEATED_NOISE in text
    assert "computed again after an interruption came out otherwise" in text
    assert len((tmp_path / ROUNDS).read_text(encoding="utf-8").splitlines()) == 5  # for whoever extends the run


def test_what_comes_out_the_same_costs_nothing_more_and_nothing_is_kept_where_there_is_no_noise(tmp_path):
    whole = ran(tmp_path / "whole", plain, PRIVACY["dp-sgd"])
    before = interrupted(tmp_path / "cut", plain, PRIVACY["dp-sgd"])
    assert [json.loads(line)["round"] for line in before] == [0, 1]
    assert epsilon(ran(tmp_path / "cut", plain, PRIVACY["dp-sgd"], resume=True)) == epsilon(whole) < np.inf
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path / "bare", plain, pf.Privacy(), stop_after=1)
    assert not (tmp_path / "bare" / ROUNDS).exists()


def test_with_a_checkpoint_of_every_round_none_is_repeated(tmp_path):
    given = {"checkpoint_seconds": 0.0}
    interrupted(tmp_path, shaken, PRIVACY["dp-sgd"], **given)
    assert epsilon(ran(tmp_path, shaken, PRIVACY["dp-sgd"], resume=True, **given)) < np.inf


def test_the_file_of_a_run_that_ended_is_kept_and_compared(tmp_path):
    ran(tmp_path, plain, PRIVACY["dp-sgd"])
    (tmp_path / ROUNDS).write_bytes(b"")
    for rounds in (3, 4):
        with pytest.raises(pf.DataError, match=r"rounds\.jsonl is damaged or was changed since the run ended; restore"):
            ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True, rounds=rounds)
    (tmp_path / ROUNDS).unlink()
    with pytest.raises(pf.DataError, match=r"rounds\.jsonl cannot be read"):
        ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True)


def test_a_round_from_before_an_extension_that_is_computed_again_is_compared(tmp_path):
    """Where an earlier version extended the run: it did not write down from where, so any checkpoint of it is taken."""
    privacy = replace(PRIVACY["dp-sgd"], noise_key=1)
    given = {"checkpoint_seconds": 0.0, "resume": True}
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, shaken, privacy, stop_after=0, **given)
    early = (tmp_path / CHECKPOINT).read_bytes()
    ran(tmp_path, shaken, privacy, **given)
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, shaken, privacy, rounds=5, stop_after=3, **given)
    directory = RunDirectory(tmp_path)
    told = directory.read_json(EXTENSION)
    directory.write_json(EXTENSION, {name: told[name] for name in ("rounds", "key")})
    (tmp_path / CHECKPOINT).write_bytes(early)
    run = ran(tmp_path, shaken, privacy, rounds=5, **given)
    assert epsilon(run) == np.inf
    assert [json.loads(line)["round"] for line in (tmp_path / ROUNDS).open()] == [0, 1, 2, 3, 1, 2, 3, 4]


def test_it_is_remembered_though_the_run_is_interrupted_once_more(tmp_path):
    interrupted(tmp_path, shaken, PRIVACY["dp-sgd"])
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, shaken, PRIVACY["dp-sgd"], resume=True, stop_after=0)
    first = [json.loads(line) for line in (tmp_path / ROUNDS).read_text(encoding="utf-8").splitlines()]
    assert [line["round"] for line in first] == [0, 1, 0]
    rounds = RepeatedRounds(RunDirectory(tmp_path), noisy=True)
    assert rounds._known[0] == {first[0]["came_to"], first[2]["came_to"]}
    assert epsilon(ran(tmp_path, shaken, PRIVACY["dp-sgd"], resume=True)) == np.inf


DAMAGE = {
    "another thing": lambda lines: b"[]\n",
    "a hash that was changed": lambda lines: lines.replace(b'"came_to": "', b'"came_to": "0', 1),
    "a round that was changed": lambda lines: lines.replace(b'"round": 0', b'"round": 7', 1),
    "a line that is doubled": lambda lines: lines + lines.splitlines(keepends=True)[0],
    "lines in another order": lambda lines: b"".join(reversed(lines.splitlines(keepends=True))),
    "a line cut in two": lambda lines: lines.replace(b", ", b"\n", 1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_named(how, tmp_path):
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"])
    (tmp_path / ROUNDS).write_bytes(DAMAGE[how]((tmp_path / ROUNDS).read_bytes()))
    with pytest.raises(pf.DataError, match=r"rounds\.jsonl in the run directory is damaged; restore it"):
        ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True)


def test_a_last_line_that_was_cut_short_is_left_out_as_long_as_nobody_was_shown_the_round(tmp_path):
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"])
    lines, metrics = (tmp_path / ROUNDS).read_bytes(), (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text(metrics.splitlines(keepends=True)[0], encoding="utf-8")
    (tmp_path / ROUNDS).write_bytes(lines[:-20])
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True, stop_after=1)
    assert (tmp_path / ROUNDS).read_bytes() == lines
    assert epsilon(ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True)) < np.inf


LOST = {
    "all of it": lambda path: path.unlink(),
    "its content": lambda path: path.write_bytes(b""),
    "its last line": lambda path: path.write_bytes(path.read_bytes().splitlines(keepends=True)[0]),
    "a line in between": lambda path: path.write_bytes(path.read_bytes().splitlines(keepends=True)[1]),
    "the end of its last line": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "what a folder bears the name of": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("seen_in", ["metrics.jsonl", "transcript"])
@pytest.mark.parametrize("lost", LOST)
def test_what_is_missing_of_a_round_that_was_shown_is_refused_and_nothing_else_is_lost(lost, seen_in, tmp_path):
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"], record=seen_in == "transcript")
    whole = (tmp_path / ROUNDS).read_bytes()
    if seen_in == "transcript":
        (tmp_path / "metrics.jsonl").unlink()
    LOST[lost](tmp_path / ROUNDS)
    before = tree(tmp_path)
    given = {"resume": True, "record": seen_in == "transcript"}
    for _ in range(2):
        with pytest.raises(
            pf.DataError, match=r"rounds\.jsonl (says nothing of round [01], which was|cannot|in the run)"
        ):
            ran(tmp_path, plain, PRIVACY["dp-sgd"], **given)
    assert tree(tmp_path) == before
    lay(tmp_path, before | {ROUNDS: whole})
    assert epsilon(ran(tmp_path, plain, PRIVACY["dp-sgd"], **given)) < np.inf


def test_a_line_of_what_the_checkpoint_holds_may_not_be_missing_either(tmp_path):
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"], checkpoint_seconds=0.0)
    (tmp_path / ROUNDS).write_bytes(b"")
    with pytest.raises(pf.DataError, match=r"rounds\.jsonl says nothing of round 0, which was shown already"):
        ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=True)


def test_without_the_file_nobody_knows_what_was_shown_unless_an_earlier_version_began_the_run(tmp_path):
    fixed = replace(PRIVACY["dp-sgd"], noise_key=1)
    interrupted(tmp_path, plain, fixed)
    (tmp_path / ROUNDS).unlink()
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(pf.DataError, match=r"rounds\.jsonl is missing, so nobody can tell"):
        ran(tmp_path, plain, fixed, resume=True)
    directory = RunDirectory(tmp_path)
    record = directory.read_json("fingerprint.json")
    directory.write_json("fingerprint.json", {name: record[name] for name in ("parts", "key")})
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, plain, fixed, resume=True, stop_after=1)
    (tmp_path / ROUNDS).unlink()
    with pytest.raises(pf.DataError, match=r"rounds\.jsonl says nothing of round 0, which was shown already"):
        ran(tmp_path, plain, fixed, resume=True)


@pytest.mark.parametrize("left", ["metrics.jsonl", ROUNDS])
def test_a_run_whose_beginning_is_lost_does_not_begin_anew_under_another_key(left, tmp_path):
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"])
    (tmp_path / "environment.json").unlink()
    (tmp_path / ({"metrics.jsonl", ROUNDS} - {left}).pop()).unlink()
    for resume in (False, True):
        with pytest.raises(pf.DataError, match=r"what is left of a run without its environment\.json; restore it"):
            ran(tmp_path, plain, PRIVACY["dp-sgd"], resume=resume)


def test_the_file_is_forced_to_disk_by_whoever_reads_it(tmp_path):
    """Whoever was killed may have written a line, and not forced it there before the next one showed the round."""
    interrupted(tmp_path, plain, PRIVACY["dp-sgd"])
    lines = (tmp_path / ROUNDS).read_bytes()
    disk = Disk(tmp_path)
    disk.files[tmp_path / ROUNDS].forced = b""
    with disk.watched():
        RepeatedRounds(RunDirectory(tmp_path), noisy=True)
    assert disk.after_power_cut(names=False)[ROUNDS] == lines
    assert [line["round"] for line in read_rounds(tmp_path / ROUNDS)] == [0, 1]
