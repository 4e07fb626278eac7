"""The docs site: it builds without a warning, and what is drawn or generated from the code is of the day."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from privfl.experiment import Experiment

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "scripts")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Privacy statement: 20 clients" in home
    assert "generated:" not in (tmp_path / "site" / "reference" / "settings.html").read_text(encoding="utf-8")


def test_the_picture_of_the_rooms_is_that_of_the_imports():
    import draw_architecture

    drawn = draw_architecture.draw(draw_architecture.relations())
    assert draw_architecture.PICTURE.read_text(encoding="utf-8") == drawn, (
        "imports, or what rooms say of themselves, have changed: run python docs/scripts/draw_architecture.py"
    )
    page, *boxes = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    lefts = [float(box.attrib["x"]) for box in boxes]
    assert min(lefts) > 0  # no box is cut off at the page's edge
    assert max(lefts) + draw_architecture.BOX < float(page.attrib["width"])


def test_the_table_of_baselines_says_what_the_algorithms_say():
    import write_baselines

    lines = write_baselines.PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").replace("\\|", "\0").split(" | ") for line in lines if line.startswith("| `")]
    found = {row[0].strip("`"): [cell.replace("\0", "|").strip() for cell in row] for row in cells}
    assert list(found) == list(write_baselines.ALGORITHMS)
    for name, row in found.items():
        assert [*row[:2], *row[3:]] == write_baselines.row(name), "run python docs/scripts/write_baselines.py"
    costs = {name: row[2] for name, row in found.items()}
    for name in ("fedavg", "apfl", "fedbabu", "fedrep", "per-fedavg"):
        assert write_baselines.passes(name) == costs[name]
    assert (costs["fedavg"], costs["fedrep"], costs["fedbabu"]) == ("E", "E + 1", "E + 5")


def test_intervals_of_the_verdicts_follow_from_the_raw_results():
    import verdict_intervals

    known = set(verdict_intervals.differences().values())
    for name, least in (("verdicts", 40), ("aaggff", 12), ("personal", 20)):
        page = (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8")
        stated = re.findall(r"[+−][\d.]+ \[[−\d.]+, [−\d.]+\]", page)
        assert len(stated) >= least
        assert set(stated) <= known, name


def test_results_has_the_state_of_every_experiment():
    import write_states

    for path, text in write_states.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python docs/scripts/write_states.py"
    verdicts = write_states.VERDICTS.read_text(encoding="utf-8")
    assert len(write_states.states(verdicts)) > 45


def test_tables_of_the_paired_studies_are_those_of_the_raw_results():
    import write_pairs

    for name in write_pairs.TABLES:
        page = (write_pairs.RESULTS / f"{name}.md").read_text(encoding="utf-8")
        assert write_pairs.written(name, page) == page, "run python docs/scripts/write_pairs.py"


def test_every_experiment_of_the_papers_has_a_state_and_a_reason():
    page = (DOCS / "results" / "verdicts.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(("| Table", "| Fig", "| the"))
    ]
    assert len(rows) > 45
    for row in rows:
        assert len(row) == 5, row
        assert re.search(r"reproduced|not decidable|not run|as above", row[3]), row
        assert row[4].strip(" –"), row


def test_the_ten_comparisons_at_the_top_are_rows_of_the_record():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    answer, _, whole = page.partition("## How it was measured")
    rows = [line.strip("| ").split(" | ") for line in answer.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    for what, median, spread in rows:
        assert re.search(rf"\| {median} \| {median if spread == 'one run' else spread}", whole), what


def test_rooms_that_use_each_other_cannot_be_drawn():
    import draw_architecture

    with pytest.raises(ValueError, match="cycle"):
        draw_architecture.draw({"data": {"models"}, "models": {"data"}})


def test_arrows_run_downwards():
    import draw_architecture

    uses = draw_architecture.relations()
    height = draw_architecture.floors(uses)
    assert {"privacy/door", "privacy/channel", "simulation", "attacks", "audits"} <= set(uses)
    assert all(height[room] > height[other] for room, used in uses.items() for other in used)


def test_the_figures_of_the_readme_follow_from_the_recorded_results(tmp_path):
    import draw_readme_figures

    draw_readme_figures.main(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == 3
    assert all(f"docs/figures/{name}" in readme for name in drawn)


def test_the_figures_of_results_pages_are_drawn_from_the_recorded_results(tmp_path):
    import redraw_figures

    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name in redraw_figures.DRAWN:
        assert (redraw_figures.FIGURES / f"{name}.png").exists(), name
        assert f"figures/{name}.png" in pages, name
    for name in ("membership-rates", "secagg"):
        redraw_figures.DRAWN[name]()(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_numbers_in_the_captions_are_those_of_the_recorded_results():
    import draw_readme_figures

    def mean(method, level):
        found = [
            run["accuracy"]
            for run in draw_readme_figures.read("demo")
            if (run["method"], run["level"]) == (method, level)
        ]
        assert len(found) == 3
        return 100 * sum(found) / 3

    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    lost = {method: round(mean(method, "no privacy") - mean(method, "ε = 1")) for method in ("FedAvg", "FedSampling")}
    assert f"noise at every client costs {lost['FedAvg']} points" in readme
    assert f"noise on the sum costs {lost['FedSampling']} " in readme
    traced = draw_readme_figures.read("prototype-inversion")
    cifar, fashion = (
        traced[name]["tracing"]["500"]["metrics"]["auc"]["value"] for name in ("cifar10", "fashion-mnist")
    )
    assert f"among 500 images the AUC is {cifar:.2f} and {fashion:.2f}" in readme


def test_the_citation_names_the_version_that_is_installed():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {about['version']}" in citation
    assert f"license: {about['license']}" in citation
    assert f"version = {{{about['version']}}}" in (DOCS / "citing.md").read_text(encoding="utf-8")


def test_every_key_of_an_experiment_file_is_in_the_reference():
    import generated

    page = generated.settings()
    example = Experiment.from_dict(
        tomllib.loads(
            """
            [partition]
            name = "iid"
            clients = 3
            [label_noise]
            name = "pair"
            rate = 0.1
            [local_tests]
            [model]
            name = "logistic"
            [privacy.training]
            noise_multiplier = 1.0
            [privacy.budget]
            epsilon = 1.0
            [privacy.size]
            name = "laplace"
            epsilon = 1.0
            bound = 9
            """
        )
    ).to_dict()
    headings = {line for line in page.splitlines() if line.startswith("## ")}
    for key, value in _flat(example):
        name = key.rpartition(".")[2]
        assert f"| `{name}` |" in page or isinstance(value, dict | list), key
        if isinstance(value, dict):
            assert f"## `[{key}]`" in headings, key
    assert {"## `[[privacy.update]]`", "## `[[privacy.statistics]]`", "## `[privacy.size]`"} <= headings


def _flat(table, prefix=""):
    """Every key of a table but the names of parts, with the tables in it."""
    for name, value in table.items():
        if name == "name":
            continue
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")


@dataclass(frozen=True)
class Undocumented:
    """No section Args."""

    size: int = 1


def test_a_setting_without_a_meaning_stops_the_build():
    import generated

    with pytest.raises(ValueError, match="Undocumented does not say under Args what size is"):
        generated.keys(generated.rows_of(Undocumented))
