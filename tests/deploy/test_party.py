"""A party's folder: its key, and what is drawn with it."""

from __future__ import annotations

import pytest

from privfl.deploy.diary import Diary
from privfl.deploy.party import key_of
from privfl.deploy.split import STATE
from privfl.errors import DataError
from privfl.privacy.secagg.store import FolderStore


def test_a_key_is_drawn_once_and_with_an_account_that_shows_when_it_is_lost(tmp_path):
    key = key_of(tmp_path)
    assert key_of(tmp_path) == key
    assert Diary(tmp_path / STATE).store.verification_key().hex() == key
    (tmp_path / STATE / "account.json").unlink()
    with pytest.raises(DataError, match="let `privfl deploy key` draw another key in an empty one"):
        Diary(tmp_path / STATE)


def test_a_key_that_was_lost_is_not_drawn_anew_beside_what_it_leaves(tmp_path):
    key_of(tmp_path)
    Diary(tmp_path / STATE).agree("ab" * 32, {})
    (tmp_path / STATE / "signing_key").unlink()
    with pytest.raises(DataError, match="signing_key is missing, and this client has agreed to runs"):
        key_of(tmp_path)


def test_the_key_of_a_server_needs_no_account(tmp_path):
    key = FolderStore(tmp_path / STATE).verification_key().hex()
    assert key_of(tmp_path) == key
    assert not (tmp_path / STATE / "account.json").exists()
