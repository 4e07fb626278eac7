"""A page defines the terms that it uses, those of its definitions among them, and no others."""

from privfl.study.glossary import _terms, glossary


def test_terms_are_defined_where_they_are_used_and_so_are_those_of_the_definitions():
    names = [name for name, _ in glossary("<p>the noise multiplier is 2</p>")]
    assert {"noise multiplier", "standard deviation", "example"} <= set(names)
    assert "macro-F1" not in names
    assert names == sorted(names, key=str.casefold)


def test_markup_uses_no_term():
    assert glossary('<div class="seed round claim"></div>') == []


def test_every_term_has_one_definition_that_ends_as_a_sentence():
    names = [name for name, _, _ in _terms()]
    assert len(names) == len(set(names)) > 30
    assert all(meaning.endswith(".") for _, _, meaning in _terms())
