"""Whatever stops a run, a study, an attack or an audit, or damages its files: the same numbers, or a sentence.

A share of what `python benchmarks/reliability.py points` and `damage` try.
"""

import functools
import logging
import os
import random
import shutil

import pytest

import privfl as pf
from privfl.errors import DataError, PrivflError
from privfl.simulation.run_directory import RunDirectory
from tests.runs import disk, interrupted_work
from tests.runs.damage import damage, sentence


@pytest.fixture(autouse=True)
def without_takeovers(caplog):
    """Every repetition takes over from a process that died, and says so."""
    caplog.set_level(logging.ERROR, "privfl.lock")


@pytest.mark.parametrize(
    ("work", "tried"),
    [
        (interrupted_work.run, 12),
        (interrupted_work.seldom_saved_run, 8),
        (interrupted_work.vectorised_run, 5),
        (interrupted_work.banded_run, 5),
        (interrupted_work.extended_run, 8),
        (interrupted_work.study, 4),
        (interrupted_work.attack, 4),
        (interrupted_work.audit, 4),
    ],
)
def test_what_was_interrupted_at_any_step_and_repeated_comes_to_the_same(tmp_path, work, tried):
    out = tmp_path / "runs" / "out"
    out.parent.mkdir()
    if work is interrupted_work.attack:
        interrupted_work.recorded(out)
    if work is interrupted_work.extended_run:
        interrupted_work.run(out, rounds=2)
    _, states = disk.interruptions(out, functools.partial(work, out))
    whole = disk.result(out)
    assert len(states) >= tried
    for step, how, state in random.Random(0).sample(states, tried):
        disk.lay(out, state)
        work(out)
        found = disk.result(out)
        assert found.keys() == whole.keys(), (how, step)
        assert [name for name in whole if found[name] != whole[name]] == [], (how, step)
        assert not any(name.endswith(("noise.key", "holder.json", ".part")) for name in found)


def test_until_an_extension_sends_something_the_statement_stays_and_afterwards_it_is_gone(tmp_path):
    out = tmp_path / "runs" / "out"
    interrupted_work.run(out, rounds=2)
    told, found = (out / "statement.json").read_bytes(), set()
    _, states = disk.interruptions(out, functools.partial(interrupted_work.extended_run, out))
    for step, how, state in states:
        disk.lay(out, state)
        shown = [*out.glob("transcript/round-*.npz")][2:] + (out / "rounds.jsonl").read_text().splitlines()[2:]
        stays = (out / "statement.json").exists() and (out / "statement.json").read_bytes() == told
        assert not (stays and shown), (how, step)
        assert not ((out / "summary.json").exists() and 0 < len(shown) < 4), (how, step)
        found.add((stays, bool(shown)))
    assert found == {(True, False), (False, False), (False, True)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    interrupted_work.run(out)
    return disk.tree(out)


def test_a_damaged_directory_is_refused_in_a_sentence_or_gives_the_same_numbers(tmp_path, finished):
    out, told = tmp_path / "out", []
    for seed in range(24):
        disk.lay(out, finished)
        whole = disk.result(out)
        done = damage(out, seed)
        try:
            RunDirectory(out).ending()
            interrupted_work.run(out)
        except PrivflError as error:
            told.append(error)
            continue
        found = disk.result(out)
        assert [name for name in whole if found.get(name) != whole[name]] == [], done
    assert all(sentence(error) for error in told)
    assert len({str(error) for error in told}) > 3


@pytest.mark.parametrize("left", [b"", bytes(64), b"0" * 64])
def test_an_interrupted_erasure_is_ended_by_whoever_comes_next(tmp_path, left):
    for number, touch in enumerate(
        [interrupted_work.run, lambda out: RunDirectory(out).settle(), pf.Experiment.of_run(recorded(tmp_path)).run]
    ):
        out = tmp_path / "run" if number == 2 else tmp_path / str(number)
        if number < 2:
            interrupted_work.run(out, rounds=1) if number else interrupted_work.run(out)
        (out / "noise.key").write_bytes(left)
        (out / "noise.key.part").write_bytes(left)
        touch(out) if number < 2 else RunDirectory(out).settle()
        assert not (out / "noise.key").exists()
        assert not (out / "noise.key.part").exists()


def test_a_finished_run_that_was_killed_before_it_let_go_is_tidied_by_whoever_comes_next(tmp_path):
    interrupted_work.run(tmp_path, rounds=1)
    (tmp_path / "holder.json").write_text('{"pid": 1, "host": "gone", "since": "then", "token": "x"}')
    RunDirectory(tmp_path).settle()
    assert not (tmp_path / "holder.json").exists()


def recorded(tmp_path):
    interrupted_work.recorded(tmp_path / "run")
    return tmp_path / "run"


def test_a_key_that_is_a_link_is_neither_used_nor_erased(tmp_path):
    (tmp_path / "other").write_bytes(b"untouched")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "noise.key").symlink_to(tmp_path / "other")
    with pytest.raises(DataError, match=r"noise\.key is a symbolic link"):
        interrupted_work.run(tmp_path / "out")
    (tmp_path / "out" / "noise.key").unlink()
    interrupted_work.run(tmp_path / "out")
    (tmp_path / "out" / "noise.key").symlink_to(tmp_path / "other")
    with pytest.raises(DataError, match=r"noise\.key is a symbolic link"):
        interrupted_work.run(tmp_path / "out")
    assert (tmp_path / "other").read_bytes() == b"untouched"


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_directory_that_is_removed_in_mid_run_stops_it_in_a_sentence(tmp_path, record, anew):
    out = tmp_path / "out"

    def vanish(simulation, line):
        shutil.rmtree(out)
        if anew:
            os.mkdir(out)

    with pytest.raises(PrivflError, match="while it was being written to, and nothing more is written there"):
        pf.simulate(interrupted_work.task(), pf.FedAvg(), rounds=5, out=out, record=record, callbacks=[vanish])
    assert (list(out.iterdir()) if anew else not out.exists()) in ([], True)


def test_metrics_that_a_power_cut_took_come_back_from_the_checkpoint(tmp_path):
    out = tmp_path / "out"
    interrupted_work.run(out)
    whole = (out / "metrics.jsonl").read_bytes()
    for left in (None, b"", whole[:50], whole.splitlines(keepends=True)[0]):
        (out / "metrics.jsonl").unlink()
        if left is not None:
            (out / "metrics.jsonl").write_bytes(left)
        interrupted_work.run(out)
        assert (out / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("checkpoints/latest.npz", "latest.npz cannot be read"),
        ("engine.json", "holds no engine.json"),
        ("summary.json", "noise.key is gone"),
    ],
)
def test_a_finished_run_that_lost_a_file_claims_nothing_less(tmp_path, name, told):
    out = tmp_path / "out"
    interrupted_work.run(out, key=None)
    if name == "summary.json":  # then it is not finished for whoever looks, and its last checkpoint went as well
        (out / "checkpoints" / "latest.npz").unlink()
    (out / name).unlink()
    with pytest.raises(PrivflError, match=told):
        interrupted_work.run(out, key=None)


def test_an_earlier_checkpoint_does_not_pass_for_the_last_one(tmp_path):
    out = tmp_path / "out"
    interrupted_work.run(out, rounds=3)
    directory = RunDirectory(out)
    checkpoint = directory.checkpoint()
    earlier = type(checkpoint)(2, checkpoint.tensors, {**checkpoint.meta, "metrics": checkpoint.meta["metrics"][:2]})
    directory.save(earlier)
    with pytest.raises(DataError, match=r"latest\.npz is damaged or was changed since the run ended"):
        interrupted_work.run(out)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    interrupted_work.run(tmp_path / "a", rounds=2)
    interrupted_work.run(tmp_path / "b", rounds=2, key=8)
    for name in ("a", "b"):
        (tmp_path / name / "summary.json").unlink()
    shutil.copy(tmp_path / "b" / "checkpoints" / "latest.npz", tmp_path / "a" / "checkpoints" / "latest.npz")
    with pytest.raises(DataError, match="belongs to another run"):
        interrupted_work.run(tmp_path / "a", rounds=2)
