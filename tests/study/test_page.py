"""The page of a run: one file that fetches nothing, reads without sight, by keyboard, on paper and on a phone."""

import base64
import hashlib
import json
import re
import shutil

import pytest

import privfl as pf
from privfl.files import write_json
from privfl.study.clients import record_clients
from privfl.study.glossary import glossary
from privfl.study.page import CHECKLIST
from privfl.study.report import report_directory
from tests.browser import CHROMIUM, browser
from tests.study.pages import Page

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "run"
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=2.0, sample_rate=0.1))
    training = pf.LocalTraining(steps=1, learning_rate=0.5)
    pf.simulate(task, pf.FedAvg("uniform"), training=training, privacy=privacy, rounds=3, out=folder,
                callbacks=[record_clients])  # fmt: skip
    bound = {"epsilon": 0.0, "assumes": "", "details": {"canaries": 60}}
    told = {"unit": "sample", "observer": "public", "claim": 1.5, "refuted": False, "verdict": "Not refuted."}
    (folder / "audits").mkdir()
    write_json(folder / "audits" / "weak.json", told | {"bounds": [bound]})
    (folder / "attacks" / "refused").mkdir(parents=True)
    write_json(folder / "attacks" / "refused" / "lira.json", {"reason": "it needs <shadows>"})
    report_directory(folder)
    return folder


@pytest.fixture(scope="module")
def text(run):
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_every_element_is_closed_and_every_id_is_there_once(page):
    assert page.open == []
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_only_script_is_the_pages_own_and_nothing_may_be_fetched(page, text):
    assert len(page.all("script")) == 1
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?://|@import", text)
    assert not any(name.startswith("on") for _, attributes, _ in page.elements for name in attributes)


def test_the_first_section_answers_before_any_number_of_the_model(page, text):
    headings = page.texts["h2"]
    assert headings[:3] == ["Who can learn what about whom", "What is not protected", "What came out"]
    assert text.count('<article class="answer') == 4


def test_every_figure_has_a_name_for_those_who_cannot_see_it_and_its_numbers_in_a_table(page):
    figures = [attributes for attributes in page.all("svg") if attributes.get("class") == "chart"]
    assert len(figures) == len(page.all("figure")) == 4
    assert all(len(figure["aria-label"]) > 30 for figure in figures)
    tables = [around for tag, _, around in page.elements if tag == "table" and "figure" in around]
    assert len(tables) == len(figures)
    assert all("details" in around for around in tables)


def test_every_table_stands_in_a_box_of_its_own_that_the_keyboard_reaches(page):
    boxes = [one for one in page.all("div") if one.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table"))
    assert all(box["tabindex"] == "0" and box["role"] == "region" and box["aria-label"] for box in boxes)


def test_every_term_is_defined_and_the_checklist_can_be_signed(page, text):
    body = text.partition("<body>")[2].partition('<dl class="terms">')[0]
    defined = set(page.texts["dt"])
    assert {name for name, _ in glossary(body)} <= defined
    kinds = [attributes["type"] for attributes in page.all("input")]
    assert (kinds.count("checkbox"), kinds.count("text")) == (len(CHECKLIST), 4)


def test_an_audit_whose_bound_is_zero_is_called_uninformative(text):
    assert "Not refuted. Uninformative (60 canaries): with a bound of 0 this audit says nothing" in text
    assert "1 of them is uninformative." in text


def test_what_could_not_be_tried_is_named_with_the_reason(text):
    assert "lira: it needs &lt;shadows&gt;." in text
    assert "Attacks on what the server saw: the run did not record it" in text


def test_date_versions_commit_and_data_are_told(run, text):
    machine = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    told = [machine["packages"]["torch"], "licence of the data", "commit of privfl", "run ended", "handwritten digits"]
    assert all(part in text for part in told)
    assert (machine["commit"] or "not recorded") in text


@needs_chromium
def test_in_a_browser_the_page_sorts_tells_points_by_keyboard_and_never_scrolls_sideways(run, tmp_path):
    file = shutil.copy(run / "report.html", tmp_path / "report.html")
    with browser() as window:
        for width, dark in ((360, True), (800, False), (1400, False)):
            window.open(tmp_path / "report.html", width=width, dark=dark)
            assert window.complaints() == []
            assert window.requests() == [file.resolve().as_uri()]
            assert window.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert window.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"

        window.js("document.querySelector('figure details').open = true")
        cells = "[...document.querySelector('figure table.sortable tbody').rows].map(r => r.cells[0].textContent)"
        assert window.js(cells) == ["1", "2", "3"]
        window.js("document.querySelector('figure table.sortable th button').focus()")
        window.press("Enter", 13)
        window.press("Enter", 13)
        assert window.js(cells) == ["3", "2", "1"]
        assert window.js("document.querySelector('figure table.sortable th').ariaSort") == "descending"

        points = "[...document.querySelector('svg.chart').querySelectorAll('.point')]"
        assert window.js(f"{points}.map(p => p.tabIndex)") == [0, -1, -1]
        window.js(f"{points}[0].focus()")
        first = window.js("document.getElementById('tip').textContent")
        window.press("ArrowRight", 39)
        second = window.js("document.getElementById('tip').textContent")
        assert first.startswith("round 1: ")
        assert second.startswith("round 2: ")

        window.open(tmp_path / "report.html", width=700, dark=True, media="print")
        assert window.js("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert window.js("getComputedStyle(document.querySelector('figure details')).display") == "none"
        window.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
