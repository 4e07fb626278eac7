"""`privfl list algorithms --bibtex`: every algorithm that follows a paper has an entry, and the entries are BibTeX."""

import re

import pytest

from privfl.algorithms import ALGORITHMS
from privfl.commands.papers import WITHOUT, bibtex, entries
from privfl.errors import ConfigError
from tests.commands.command_line import privfl


def test_every_algorithm_has_its_paper_and_no_entry_names_another():
    named = [names for _, names in entries()]
    assert set().union(*named) == set(ALGORITHMS) - set(WITHOUT)


def test_every_entry_has_a_key_of_its_own_and_says_who_what_and_when():
    keys = []
    for text, _ in entries():
        keys += re.findall(r"^@(?:inproceedings|article|misc)\{(\w+),$", text, re.M)
        fields = re.findall(r"^  (\w+) = \{.+\},?$", text, re.M)
        assert {"title", "author", "year"} <= set(fields), text
        assert len(set(fields)) == len(fields) == len(text.splitlines()) - 2, text
        assert text.count("{") == text.count("}"), text
    assert len(keys) == len(set(keys)) == len(entries())


def test_papers_that_docstrings_name_by_arxiv_number_are_the_entries_papers():
    for name, part in ALGORITHMS.items():
        for number in re.findall(r"arXiv (\d{4}\.\d{5})", (part.__doc__ or "").split("\n\n")[0]):
            assert number in bibtex([name]), name


def test_the_command_prints_the_papers_of_all_or_of_one():
    code, out, _ = privfl("list", "algorithms", "--bibtex")
    assert code == 0
    assert out.count("@") == len(entries())
    _, out, _ = privfl("list", "algorithms", "fedyogi", "--bibtex")
    assert out.count("@") == 1
    assert out.startswith("@inproceedings{reddi2021adaptive,")


@pytest.mark.parametrize("name", WITHOUT)
def test_a_reference_follows_no_paper(name):
    with pytest.raises(ConfigError, match=f"{name} follows no paper; leave the name out"):
        bibtex([name])


@pytest.mark.parametrize("asked", [("models", "--bibtex"), ("algorithms", "--bibtex", "--json")])
def test_bibtex_is_for_algorithms_alone(asked):
    code, out, err = privfl("list", *asked)
    assert (code, out) == (2, "")
    assert "--bibtex belongs to `privfl list algorithms` without --json" in err
