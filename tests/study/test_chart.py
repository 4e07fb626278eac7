"""Figures of a page: vector, in its colours, with the digits that ticks need and a text for every point."""

import re
import warnings
import xml.etree.ElementTree as ET

import pytest

from privfl.study.chart import COLOURS, Chart, Share, few, figure_bytes, legend, style, wrapped_name


def drawn(texts=("a", "b", "c")) -> Chart:
    chart = Chart("values & <others>", ("x", "y"))
    axes = chart.panel()
    (line,) = axes.plot([1, 2, 3], [0.97, 0.975, 0.98], label="one <b>", **style(0))
    chart.tell(line, texts)
    legend(axes)
    axes.yaxis.set_major_formatter(Share())
    return chart


@pytest.mark.parametrize(
    ("ticks", "shown"),
    [
        ([0.97, 0.975, 0.98], ["97.0 %", "97.5 %", "98.0 %"]),
        ([0.2, 0.4], ["20 %", "40 %"]),
        ([0.9975, 1.0], ["99.75 %", "100.00 %"]),
    ],
)
def test_ticks_have_the_digits_that_they_need(ticks, shown):
    assert Share().format_ticks(ticks) == shown


def test_a_chart_in_a_page_takes_the_pages_colours_fetches_nothing_and_escapes():
    markup = drawn().markup("first")
    root = ET.fromstring(markup)
    assert root.tag == "svg"
    assert "currentColor" in markup
    assert f"var(--series-1, {COLOURS[0].lower()})" in markup
    assert not re.search(r"https?:|<image|<script|<style|#010101", markup)
    assert "one &lt;b&gt;" in markup
    assert root.get("aria-label") == "values & <others>"
    assert not {"width", "height"} & set(root.keys())


def test_every_point_bears_its_text_once():
    root = ET.fromstring(drawn().markup("first"))
    points = [element for element in root.iter("g") if element.get("class") == "point"]
    assert [point.findtext("title") for point in points] == ["a", "b", "c"]
    assert [len(list(point.iter("use"))) for point in points] == [1, 1, 1]
    with pytest.raises(ValueError, match="zip"):
        drawn(("a", "b")).markup("first")


def test_two_charts_on_a_page_share_no_id_and_refer_to_their_own():
    markup = [drawn().markup(name) for name in ("first", "second")]
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in markup]
    assert not ids[0] & ids[1]
    for text, own in zip(markup, ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= own


def test_a_chart_is_the_same_each_time():
    assert drawn().markup("x") == drawn().markup("x")
    assert figure_bytes(drawn(), "svg") == figure_bytes(drawn(), "svg")


def test_lines_differ_in_grey_too():
    looks = [style(index) for index in range(6)]
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 6


@pytest.mark.parametrize(
    ("number", "marked"), [(1, [0]), (3, [0, 1, 2]), (100, [9, 19, 29, 39, 49, 59, 69, 79, 89, 99])]
)
def test_few_points_are_marked_the_last_among_them(number, marked):
    assert few(number) == marked if number != 100 else few(number, 10) == marked


def test_a_long_title_is_broken_and_leaves_the_axes_their_width():
    widths = []
    for title in ("short", "a title that says more than fits into one line, " * 3):
        chart = Chart("a line", ("x", "y"))
        axes = chart.panel()
        axes.plot([0, 1], [0, 1], label="line")
        legend(axes, title)
        figure_bytes(chart, "png")
        widths.append(axes.get_position().width)
    assert widths[1] == pytest.approx(widths[0], abs=0.02)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("FedAvg", "FedAvg"),
        (
            "a method of one's own that takes two lines of a legend",
            "a method of one's own that takes two lines\nof a legend",
        ),
        (
            "first " + "and on " * 30 + "(ours)",
            "first and on and on and on and on and on and …\n… on and on and on and on and on and on (ours)",
        ),
        ("A" * 99, "A" * 29 + " …\n… " + "A" * 29),
    ],
)
def test_a_long_name_takes_two_lines_and_keeps_its_ends(name, shown):
    assert wrapped_name(name) == shown


@pytest.mark.parametrize(
    "names", [["x" * 300, "short"], ["W" * 60], [f"a method with a long name, number {n}" for n in range(5)]]
)
def test_long_names_leave_the_axes_their_width_and_height(names):
    sizes = []
    for shown in (["short"], names):
        chart = Chart("lines", ("x", "y"))
        axes = chart.panel()
        for name in shown:
            axes.plot([0, 1], [0, 1], label=name)
        legend(axes, "title")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Matplotlib's, that axes collapsed
            figure_bytes(chart, "png")
        place = axes.get_position()
        sizes.append((place.width, place.height * chart.get_figheight()))
    assert sizes[1][0] == pytest.approx(sizes[0][0], abs=0.05)
    assert sizes[1][1] == pytest.approx(sizes[0][1], rel=0.1)


@pytest.mark.parametrize("name", [r"$\textbf{Ours}$", "costs $5_ or $_6", r"FedAvg, \$5 to $\frac{a}$", "$x$"])
def test_a_name_with_dollars_is_no_formula(name):
    chart = Chart("lines", ("x", "y"))
    axes = chart.panel()
    axes.plot([0, 1], [0, 1], label=name)
    axes.set_title(name)
    axes.text(0.5, 0.5, name)
    axes.set_xticks([0, 1], [name, "b"])
    legend(axes, name)
    assert chart.markup("x").count(f">{name}<") == 5
    assert figure_bytes(chart, "png").startswith(b"\x89PNG")
