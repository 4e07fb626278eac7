"""A store outlives its client: keys stay, served sessions stay served, and nobody else can read it."""

import multiprocessing
import stat

import pytest

from privfl.errors import DataError, PrivflError
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import SpentClient
from privfl.privacy.secagg.primitives import verification_key
from privfl.privacy.secagg.store import FolderStore, MemoryStore
from tests.privacy.secagg.staging import a_session

ONE, OTHER = b"\1" * 32, b"\2" * 32


@pytest.mark.parametrize("make", [lambda _: MemoryStore(), FolderStore])
def test_a_session_is_served_once_and_sums_are_remembered(make, tmp_path):
    store = make(tmp_path / "client")
    store.serve(ONE)
    store.serve(OTHER)
    with pytest.raises(SpentClient, match="served before"):
        store.serve(ONE)
    assert list(store.opened()) == []
    store.open(ONE, {3, 1, 2**32 - 2})
    store.open(OTHER, [4])
    assert list(store.opened()) == [{1, 3, 2**32 - 2}, {4}]


def test_a_client_made_again_from_the_same_folder_is_refused(tmp_path):
    session = a_session()
    Client(session, 0, store=FolderStore(tmp_path))
    with pytest.raises(SpentClient):
        Client(session, 0, store=FolderStore(tmp_path))
    Client(a_session(round=8), 0, store=FolderStore(tmp_path))


def test_the_signing_key_is_drawn_once_and_everything_is_the_owners_alone(tmp_path):
    folder = tmp_path / "some" / "client"
    key = FolderStore(folder).signing_key()
    store = FolderStore(folder)
    assert store.signing_key() == key
    assert store.verification_key() == verification_key(key)
    assert FolderStore(tmp_path / "other").signing_key() != key
    store.serve(ONE)
    store.open(ONE, {1})
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.parent.name for path in files) == ["client", "opened", "served"], "no draft is left"
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def race(folder, barrier, pipe):
    store = FolderStore(folder)
    barrier.wait(60)
    key = store.signing_key()
    try:
        store.serve(ONE)
    except SpentClient:
        pipe.send((key, False))
    else:
        pipe.send((key, True))


def test_of_processes_that_serve_a_session_at_once_one_may_and_all_have_one_key(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    mine, theirs = context.Pipe()
    processes = [context.Process(target=race, args=(tmp_path, barrier, theirs)) for _ in range(4)]
    for process in processes:
        process.start()
    told = [mine.recv() for _ in processes if mine.poll(60)]
    for process in processes:
        process.join(60)
    assert len({key for key, _ in told}) == 1
    assert sorted(served for _, served in told) == [False, False, False, True]


def test_a_store_that_cannot_be_used_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PrivflError, match="cannot be used"):
        FolderStore(tmp_path / "file" / "below")
    store = FolderStore(tmp_path / "client")
    (tmp_path / "client" / "signing_key").write_bytes(bytes(32))
    with pytest.raises(DataError, match="signing_key holds zeros, which are no signing key"):
        store.signing_key()
    (tmp_path / "client" / "signing_key").write_bytes(b"short")
    with pytest.raises(DataError, match="5 bytes"):
        store.signing_key()
    (tmp_path / "client" / "served").rmdir()
    with pytest.raises(PrivflError, match="cannot be used"):
        store.serve(ONE)
