"""MIND's titles become token ids and its topics classes, divided in the order of the file."""

import pytest

from privfl.data.news import TOPICS
from privfl.data.questions import hashed
from privfl.errors import DataError
from tests.data.official import loaded, private_round, write


def line(number, topic, title):
    return "\t".join((f"N{number}", topic, "sub", title, 'An "abstract"', "https://example.org", "[]", "[]"))


def test_titles_are_hashed_and_the_last_fifth_is_for_testing(tmp_path, monkeypatch):
    topics = ("sports", "news", "weather", "sports", "tv")
    rows = [line(number, topic, f'"Title" of number {number}') for number, topic in enumerate(topics)]
    write(tmp_path / "mind/news.tsv", "\n".join(rows) + "\n")
    data = loaded("mind", monkeypatch, tmp_path, length=3, vocabulary=40)
    assert [TOPICS[label] for label in (*data.targets, *data.test_targets)] == list(topics)
    assert len(data.test_targets) == 1
    assert data.inputs[2].tolist() == hashed("title of number 2", 40)[:3]
    assert private_round(data, "text-cnn", embedding_dim=4, filters=4, hidden=4, dropout=0.0) > 0


def test_other_tables_and_unknown_topics_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "mind/news.tsv", line(1, "sports", "a") + "\nN2\tnews\n")
    with pytest.raises(DataError, match="line 2 has 2 columns where MIND has 8"):
        loaded("mind", monkeypatch, tmp_path)
    write(tmp_path / "mind/news.tsv", line(1, "gossip", "a") + "\n")
    with pytest.raises(DataError, match="line 1 is of the topic 'gossip'"):
        loaded("mind", monkeypatch, tmp_path)
