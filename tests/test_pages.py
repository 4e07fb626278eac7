"""The pages of the site: every symbol of a result is defined, no page is too long, and words mean one thing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LONGEST = 1500
"""Words of a page that is read from beginning to end."""
LOOKED_UP = (
    "reference/",
    "baselines.md",
    "results/verdicts.md",
    "results/mutants.md",
    "results/claim-fuzzer.md",
    "benchmarks.md",
)
"""Pages in which one looks things up, and pages whose tables a program writes."""


@pytest.fixture(scope="module")
def read_symbols():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "scripts")
        import read_symbols

        yield read_symbols


def names(page):
    return page.relative_to(DOCS).as_posix()


def test_every_symbol_of_a_results_page_is_defined_and_every_definition_used(read_symbols):
    notation = read_symbols.NOTATION.read_text(encoding="utf-8")
    assert {"ε", "δ", "z", "C", "q"} <= read_symbols.defined(notation)
    for page in read_symbols.PAGES:
        text = page.read_text(encoding="utf-8")
        assert not read_symbols.undefined(text, notation), page.name
        assert not read_symbols.unused(text), page.name
    assert len(read_symbols.PAGES) > 15


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("N̂/N at σ = 2, T_g and w^l", {"N̂", "N", "σ", "T_g", "w^l"}),
        ("α/2 + (n/2β)·log(1 + βL∞²T/α)", {"α", "n", "β", "L∞", "T"}),
        ("σ_t and σ_1, μ₀, 4n·F̄", {"σ", "μ", "n", "F̄"}),
        ("q-FedAvg of S. Hahn, f-DP, Rényi, a client's A, 0.5 s", set()),
        ("`x = y` [z](z.md) <!-- w --> ΣΔ_k", {"z", "Δ_k"}),
    ],
)
def test_symbols_are_told_from_words(read_symbols, text, found):
    assert read_symbols.symbols(text) == found


def test_a_symbol_without_a_definition_is_found_and_a_definition_without_a_use(read_symbols):
    page = "T_l and ε\n\n## Symbols\n\n| symbol | meaning |\n|---|---|\n| T_l, T_g | scores |\n\n## Next\n\nq\n"
    assert read_symbols.undefined(page, "## Symbols\n\n| ε, δ | privacy |\n") == {"q"}
    assert read_symbols.unused(page) == {"T_g"}


def words(text):
    """Words of at least two letters, outside code, comments and addresses."""
    text = re.sub(r"```.*?```|<!--.*?-->|(?<=\])\([^)]*\)", " ", text, flags=re.S)
    return [word for word in text.split() if re.search(r"[^\W\d_]{2}", word)]


def test_no_page_is_too_long_to_read():
    long = {
        names(page): len(words(page.read_text(encoding="utf-8")))
        for page in DOCS.rglob("*.md")
        if not names(page).startswith(LOOKED_UP)
    }
    assert {name: count for name, count in long.items() if count > LONGEST} == {}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


PRIVATE = {
    r"\bbare\b(?! (loop|one-thread|PyTorch))": "without noise",
    r"\b(given|gives) up\b": "aborted",
    r"\bin clear\b": "without noise, in the clear",
    r"\bcr(y|ies) wolf\b": "raises false alarms",
    r"\bsiege\b": "distinguishing attack",
    r"\bfalls? silent\b": "drops out",
    r"\blaws?\b": "distribution",
    r"\bdealt\b": "assigned",
    r"\bclaims? nothing\b|\bnothing is claimed\b": "no guarantee",
    r"\b(test|training|validation|held-out|public|private|patient's|hospital's) rows?\b": "examples",
    r"\btold\b(?! (apart )?(from|by))": "described, sent, shown",
}
"""Words of the authors' own, as regular expressions, with what the field says."""
WRITTEN_BY_PROGRAMS = ("results/mutants.md", "results/claim-fuzzer.md", "benchmarks.md")


def test_pages_speak_the_words_of_the_field():
    pages = [page for page in DOCS.rglob("*.md") if names(page) not in WRITTEN_BY_PROGRAMS]
    found = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.S)
        text = " ".join(text.split())
        for private, better in PRIVATE.items():
            found += [f"{page.name}: {match[0]!r}, say {better}" for match in re.finditer(private, text)]
    assert not found


def test_no_page_names_a_document_that_nobody_can_read():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        assert "the specification" not in page.read_text(encoding="utf-8"), page.name
