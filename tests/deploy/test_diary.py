"""What a client remembers: which answer it gave, and that no part of its memory is lost or old without its notice."""

from __future__ import annotations

import shutil

import pytest

from privfl.deploy.diary import CameOutOtherwise, Diary

RUN = "ab" * 32
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


def test_an_answer_that_was_damaged_is_not_given(diary):
    file_of(diary, 0).write_bytes(b"an anSwer")
    assert Diary(diary.folder).answer(RUN, REQUESTS[0]) is None


def test_how_far_a_run_came_is_known_without_its_answers(diary):
    for round in (1, 2, 3):
        answer(diary, round)
    assert not file_of(diary, 0).exists()  # two rounds are kept
    shutil.rmtree(diary.folder / "runs")
    assert Diary(diary.folder).newest(RUN) == 3
