"""The store: an index of results that many may write to at once, and that refuses what it cannot read."""

import math
import sqlite3
from contextlib import closing
from threading import Barrier, Thread

import pytest

from privfl.errors import ConfigError, DataError
from privfl.study import store as store_module
from privfl.study.store import FILE, VERSION, Member, Store

TOLD = {"title": "t", "metric": "accuracy"}


def test_what_was_noted_is_read_back(tmp_path):
    store = Store(tmp_path)
    members = [Member("A", "l", 0, "a"), Member("B", "l", 0, "b"), Member("C", "l", 0, "", "impossible", "because")]
    store.enrol("s", "x", TOLD, members)
    assert [one.state for one in store.members("s")] == ["waiting", "waiting", "impossible"]
    store.begin("a")
    store.begin("b")
    assert store.members("s")[0].state == "running"
    store.finish("a", {"test_accuracy": 0.5, "epsilon sample/public": math.inf, "test_loss": None}, {"seed": 0})
    store.fail("b", "it diverged", {"rounds": 3})
    first, second, third = store.members("s")
    assert (first.state, first.metrics["test_accuracy"], first.metrics["epsilon sample/public"]) == (
        "done",
        0.5,
        math.inf,
    )
    assert math.isnan(first.metrics["test_loss"])
    assert (second.state, second.reason, second.metrics) == ("failed", "it diverged", {"rounds": 3})
    assert (third.state, third.reason) == ("impossible", "because")
    assert (store.source("s"), store.told("s"), store.source("other")) == ("x", TOLD, "")


def test_studies_share_runs_and_a_new_start_keeps_what_is_done(tmp_path):
    store = Store(tmp_path)
    store.enrol("s", "x", TOLD, [Member("A", "l", 0, "a")])
    store.finish("a", {"test_accuracy": 0.5}, {})
    store.enrol("t", "y", TOLD, [Member("Z", "m", 0, "a"), Member("Y", "m", 0, "b")])
    store.enrol("s", "x", TOLD, [Member("A", "l", 0, "a"), Member("A", "l", 1, "c")])
    assert [(one.method, one.state) for one in store.members("t")] == [("Z", "done"), ("Y", "waiting")]
    assert [one.state for one in store.members("s")] == ["done", "waiting"]


def test_a_run_whose_directory_is_gone_counts_as_never_had(tmp_path):
    store = Store(tmp_path)
    store.path("a").mkdir(parents=True)
    (store.path("a") / "summary.json").write_text("{}")
    store.finish("a", {"test_accuracy": 0.5}, {})
    assert (store.ended(["a", "b"]), store.outdated(["a", "b"])) == ({"a": "done"}, [])
    (store.path("a") / "summary.json").unlink()
    assert (store.ended(["a", "b"]), store.outdated(["a", "b"])) == ({}, ["a"])


def test_a_run_that_has_ended_otherwise_since_it_was_noted_is_to_be_read_anew(tmp_path):
    store = Store(tmp_path)
    store.path("a").mkdir(parents=True)
    (store.path("a") / "summary.json").write_text("{}")
    store.finish("a", {"test_accuracy": 0.5}, {"seed": 0})
    (store.path("a") / "summary.json").write_text('{"rounds": 40}')
    assert (store.ended(["a"]), store.outdated(["a"])) == ({}, ["a"])
    store.finish("a", {"test_accuracy": 0.6})
    assert store.outdated(["a"]) == []


def test_whether_noise_came_from_a_fixed_key_is_kept_with_the_run(tmp_path):
    store = Store(tmp_path)
    store.enrol("s", "x", TOLD, [Member("A", "l", 0, name) for name in "ab"])
    for name, fixed in (("a", "true"), ("b", "false")):
        store.path(name).mkdir(parents=True)
        (store.path(name) / "summary.json").write_text("{}")
        (store.path(name) / "statement.json").write_text(f'{{"reproducible_noise": {fixed}}}')
        store.finish(name, {}, {})
    assert [one.reproducible for one in store.members("s")] == [True, False]


def test_an_index_of_a_version_that_kept_no_digests_is_read_anew(tmp_path):
    store = Store(tmp_path)
    store.path("a").mkdir(parents=True)
    (store.path("a") / "summary.json").write_text("{}")
    store.finish("a", {"test_accuracy": 0.5}, {})
    with sqlite3.connect(store.file) as database:
        database.execute("DROP TABLE endings")
    assert Store(tmp_path).outdated(["a"]) == ["a"]


def test_many_writers_lose_nothing(tmp_path):
    store = Store(tmp_path)
    names = [f"run-{number}" for number in range(40)]
    store.enrol("s", "x", TOLD, [Member("A", "l", seed, name) for seed, name in enumerate(names)])

    def write(mine):
        own = Store(tmp_path)
        for name in mine:
            own.begin(name)
            own.finish(name, {f"m{number}": float(number) for number in range(20)}, {})

    writers = [Thread(target=write, args=(names[part::4],)) for part in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(one.state == "done" and len(one.metrics) == 20 for one in store.members("s"))


def test_many_may_begin_a_store_at_once(tmp_path):
    for turn in range(20):
        folder, together, failed = tmp_path / str(turn), Barrier(4), []

        def begin(folder=folder, together=together, failed=failed):
            together.wait()
            try:
                Store(folder).enrol("s", "x", TOLD, [Member("A", "l", 0, "a")])
            except Exception as error:
                failed.append(error)

        beginners = [Thread(target=begin) for _ in range(4)]
        for one in beginners:
            one.start()
        for one in beginners:
            one.join()
        assert not failed
        assert [one.run for one in Store(folder).members("s")] == ["a"]


def test_a_store_that_another_process_is_about_to_begin_is_waited_for(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        beginner = Thread(target=Store, args=(tmp_path,))
        beginner.start()
        beginner.join(0.3)
        assert beginner.is_alive()
        other.execute("ROLLBACK")
    beginner.join()
    assert Store(tmp_path).members("s") == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_file_that_another_process_does_not_let_go_of_is_not_called_broken(tmp_path, monkeypatch, begun):
    if begun:
        Store(tmp_path)
    monkeypatch.setattr(store_module, "PATIENCE", 0.2)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match=r"in use by another process for more than 0\.2 s; wait for it, or end it$"):
            Store(tmp_path)


def test_a_store_of_another_version_is_refused_in_a_sentence(tmp_path):
    store = Store(tmp_path)
    with sqlite3.connect(store.file) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 6}")
    with pytest.raises(
        DataError, match=f"is a store of version {VERSION + 6}, and this privfl reads version {VERSION}"
    ):
        Store(tmp_path)


def test_a_database_of_another_program_and_a_file_of_rubbish_are_refused(tmp_path):
    with sqlite3.connect(tmp_path / "results.sqlite") as database:
        database.execute("CREATE TABLE photos (id)")
    with pytest.raises(DataError, match="an SQLite file of another program"):
        Store(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "results.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.raises(DataError, match=r"cannot be used as a store of results .*without training anything"):
        Store(tmp_path / "b")


def test_what_was_never_started_is_said_to_be(tmp_path):
    with pytest.raises(DataError, match="holds no results yet; start with `privfl study run`"):
        Store(tmp_path, create=False)
    assert not (tmp_path / "results.sqlite").exists()
    Store(tmp_path).enrol("s", "x", TOLD, [])
    with pytest.raises(DataError, match=r"holds no study 't' \(it holds s\)"):
        Store(tmp_path).told("t")


def test_an_index_that_is_no_text_is_refused_in_a_sentence(tmp_path):
    Store(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    assert b"CREATE TABLE" in content
    (tmp_path / FILE).write_bytes(content.replace(b"CREATE TABLE", b"CREATE \x9a\x9a\x9a\x9a\x9a"))
    with pytest.raises(DataError, match=r"results\.sqlite cannot be used as a store of results"):
        Store(tmp_path)


def test_a_file_in_the_place_of_the_store_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be made: a file is in its way; choose another one"):
            Store(folder)
