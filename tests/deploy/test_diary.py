"""What a client remembers: which answer it gave, and that no part of its memory is lost or old without its notice."""

from __future__ import annotations

import shutil

import pytest
from filelock import FileLock

from privfl.deploy import diary as diary_module
from privfl.deploy.diary import CameOutOtherwise, Diary
from privfl.errors import DataError, PrivflError
from privfl.files import read_json, write_json
from privfl.privacy.noise.source import KEY_BYTES

RUN, OTHER = "ab" * 32, "cd" * 32
REQUESTS = [f"{number:064x}" for number in range(8)]


@pytest.fixture
def diary(tmp_path):
    """That of a client which has answered round 0 of one run, under a noise key of its own."""
    one = Diary(tmp_path / "state")
    one.store.signing_key()
    one.agree(RUN, {})
    one.noise(RUN, None)
    answer(one, 0)
    return one


def answer(diary, round, reply=b"an answer", run=RUN):
    diary.begin(run, f"round {round}", REQUESTS[round], diary.books(run))
    diary.settle(run, round, REQUESTS[round], reply)
    diary.keep_answer(run, round, REQUESTS[round], reply)


def file_of(diary, round):
    return diary.folder / "runs" / RUN[:32] / f"answer-{round:06d}-{REQUESTS[round]}.bin"


def test_an_answer_that_was_lost_is_kept_again_if_it_comes_out_as_before_and_not_otherwise(diary):
    file_of(diary, 0).unlink()
    again = Diary(diary.folder)
    assert again.answer(RUN, REQUESTS[0]) is None
    with pytest.raises(CameOutOtherwise, match="came out otherwise when it was computed again under the same noise"):
        again.settle(RUN, 0, REQUESTS[0], b"another one")
    again.settle(RUN, 0, REQUESTS[0], b"an answer")
    again.keep_answer(RUN, 0, REQUESTS[0], b"an answer")
    assert again.answer(RUN, REQUESTS[0]) == b"an answer"


def test_which_answer_was_given_is_on_disk_before_the_answer_is(diary):
    diary.begin(RUN, "round 1", REQUESTS[1], diary.books(RUN))
    diary.settle(RUN, 1, REQUESTS[1], b"an answer")  # and here the process ends
    with pytest.raises(CameOutOtherwise):
        Diary(diary.folder).settle(RUN, 1, REQUESTS[1], b"another one")


def test_a_process_that_does_not_let_go_of_the_account_is_not_waited_for_without_end(diary, monkeypatch):
    monkeypatch.setattr(diary_module, "PATIENCE", 0.1)
    with (
        FileLock(diary.folder / "account.lock"),
        pytest.raises(PrivflError, match=r"account\.json is being written to by another process .* 0\.1 s; end all"),
    ):
        Diary(diary.folder)
    Diary(diary.folder)


def test_an_answer_that_was_damaged_is_not_given(diary):
    file_of(diary, 0).write_bytes(b"an anSwer")
    assert Diary(diary.folder).answer(RUN, REQUESTS[0]) is None


def test_how_far_a_run_came_is_known_without_its_answers(diary):
    for round in (1, 2, 3):
        answer(diary, round)
    assert not file_of(diary, 0).exists()  # two rounds are kept
    assert set(read_json(diary.folder / "account.json")["runs"][RUN]["answers"]) == set(REQUESTS[2:4])
    shutil.rmtree(diary.folder / "runs")
    assert Diary(diary.folder).newest(RUN) == 3


@pytest.mark.parametrize("left", ["noise_key", "signing_key", "served", "opened", "runs"])
def test_a_client_without_its_account_does_not_start_from_nothing(left, diary):
    diary.store.serve(bytes(32))
    diary.store.open(bytes(32), [0, 1])
    kept = diary.folder.with_name("kept")
    kept.mkdir()
    shutil.move(diary.folder / left, kept / left)
    with pytest.raises(DataError, match=rf"account\.json is missing beside {left}.* restore the client's folder"):
        Diary(kept)
    assert not (kept / "account.json").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "noise_key is missing, and this client has drawn it before"),
        (bytes(KEY_BYTES), "noise_key is damaged: it holds 32 zeros where a noise key has 32 bytes"),
        (b"short", "noise_key is damaged: it holds 5 bytes where a noise key has 32 bytes"),
        (b"k" * KEY_BYTES, "noise_key is damaged, or not the noise key that this client has drawn"),
    ],
    ids=["missing", "zeros", "short", "another"],
)
def test_a_client_with_another_noise_key_than_it_drew_does_not_start(content, sentence, diary):
    path = diary.folder / "noise_key"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"{sentence}; restore the client's folder"):
        Diary(diary.folder)


def test_the_check_of_a_noise_key_is_not_the_key(diary):
    key, account = (diary.folder / "noise_key").read_bytes(), read_json(diary.folder / "account.json")
    assert account["noise_key"]
    assert account["noise_key"] not in (key.hex(), key.hex()[:32], key.hex()[32:])


def test_a_folder_of_the_version_before_opens_and_its_key_is_known_from_then_on(diary):
    account = diary.folder / "account.json"
    told = read_json(account)
    runs = {run: {name: one for name, one in its.items() if name != "answers"} for run, its in told["runs"].items()}
    write_json(account, {"ledger": told["ledger"], "runs": runs})
    assert Diary(diary.folder).ledger.state() == diary.ledger.state()
    (diary.folder / "noise_key").write_bytes(b"k" * KEY_BYTES)
    with pytest.raises(DataError, match="not the noise key that this client has drawn"):
        Diary(diary.folder)


def test_a_key_of_zeros_is_none_in_a_folder_of_the_version_before_either(diary):
    write_json(diary.folder / "account.json", {"ledger": diary.ledger.state(), "runs": {}})
    (diary.folder / "noise_key").write_bytes(bytes(KEY_BYTES))
    with pytest.raises(DataError, match="it holds 32 zeros"):
        Diary(diary.folder)


@pytest.mark.parametrize("further", ["a run", "an answer", "what was kept"])
def test_an_account_that_is_older_than_the_answers_is_refused(further, diary):
    account = diary.folder / "account.json"
    before = account.read_bytes()
    if further == "a run":
        diary.agree(OTHER, {})
        answer(diary, 0, run=OTHER)
    elif further == "an answer":
        answer(diary, 1)
    else:
        diary.keep(RUN, 1, -1, {})
    account.write_bytes(before)
    with pytest.raises(DataError, match=r"account\.json does not know .*, so it is older than what this client sent"):
        Diary(diary.folder)


def test_an_old_answer_that_a_power_cut_brought_back_is_no_reason_to_refuse(diary):
    content = file_of(diary, 0).read_bytes()
    for round in (1, 2, 3):
        answer(diary, round)
    file_of(diary, 0).write_bytes(content)
    assert Diary(diary.folder).newest(RUN) == 3


@pytest.mark.parametrize("folder", ["served", "opened"])
def test_secure_sums_that_were_forgotten_are_noticed(folder, diary):
    diary.store.serve(bytes(32))
    diary.store.open(bytes(32), [0, 1])
    answer(diary, 1)
    shutil.rmtree(diary.folder / folder)
    with pytest.raises(DataError, match=f"{folder} holds 0 secure sums, and there were 1"):
        Diary(diary.folder)


def test_a_signing_key_that_was_lost_is_not_drawn_anew(diary):
    (diary.folder / "signing_key").unlink()
    with pytest.raises(DataError, match="signing_key is missing, and this client has agreed to runs"):
        Diary(diary.folder)
    assert not (diary.folder / "signing_key").exists()


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_whenever_a_first_start_is_interrupted_the_next_one_goes_on(at, after, tmp_path, monkeypatch):
    written = [0]

    def crashing(write):
        def wrapped(*args, **options):
            written[0] += 1
            if written[0] == at and not after:
                raise Crash
            write(*args, **options)
            if written[0] == at:
                raise Crash

        return wrapped

    with monkeypatch.context() as machine:
        for name in ("write_whole", "write_json"):
            machine.setattr(diary_module, name, crashing(getattr(diary_module, name)))
        with pytest.raises(Crash):
            Diary(tmp_path).noise(RUN, None)
    assert written == [at]
    found = Diary(tmp_path).noise(RUN, None)
    assert Diary(tmp_path).noise(RUN, None) == found
