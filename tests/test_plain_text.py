"""A letter that the encoding of standard output lacks is spelled out; text that it has stays as it is."""

import io
import re
import sys

import pytest

import privfl as pf
from audits.bounds.bound import LowerBound
from privfl.plain_text import as_written, let_every_text_be_printed, printable

SENTENCE = "ε ≤ 3 at δ = 1e-5, “not” ∞"


def output(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


def test_utf_8_prints_every_text_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stdout", output("utf-8"))
    assert printable(SENTENCE) == SENTENCE


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("cp1252", "epsilon <= 3 at delta = 1e-5, “not” infinity"),
        ("cp437", 'ε ≤ 3 at δ = 1e-5, "not" ∞'),
        ("ascii", 'epsilon <= 3 at delta = 1e-5, "not" infinity'),
    ],
)
def test_only_what_an_encoding_lacks_is_spelled_out(monkeypatch, encoding, shown):
    monkeypatch.setattr(sys, "stdout", output(encoding))
    assert printable(SENTENCE) == shown


@pytest.mark.parametrize(
    ("letter", "shown"), [("β", "beta"), ("Δ", "Delta"), ("Σ", "sum of "), ("σ²", "sigma^2"), ("x₁", "x_1")]
)
def test_greek_letters_and_indices_are_read_out(monkeypatch, letter, shown):
    monkeypatch.setattr(sys, "stdout", output("ascii"))
    assert printable(letter) == shown


def test_a_letter_that_nobody_spelled_is_escaped(monkeypatch):
    monkeypatch.setattr(sys, "stdout", output("ascii"))
    assert printable("雪 \udc80") == r"\u96ea \udc80"


def test_without_standard_output_text_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert printable(SENTENCE) == SENTENCE


def test_what_a_command_prints_itself_is_spelled_out_too(monkeypatch):
    out, err = output("cp1252"), output("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    let_every_text_be_printed()
    print(SENTENCE)
    print(SENTENCE, file=sys.stderr)
    for stream, shown in ((out, "epsilon <= 3"), (err, "epsilon <= 3")):
        stream.flush()
        assert stream.buffer.getvalue().decode(stream.encoding).startswith(shown)


def test_a_trained_run_prints_its_statement_on_a_terminal_without_epsilon(monkeypatch):
    task = pf.load("digits", partition=pf.Dirichlet(clients=2, alpha=1.0), model="logistic")
    training = pf.LocalTraining(learning_rate=0.1, batch_size=16)
    run = pf.simulate(task, pf.FedAvg(weighting="uniform"), training=training, rounds=1)
    bound = LowerBound(epsilon=1.0, delta=1e-5, confidence=0.95, method="counts")
    stream = output("cp1252")
    monkeypatch.setattr(sys, "stdout", stream)
    print(run.statement)
    print(bound)
    stream.flush()
    shown = stream.buffer.getvalue().decode("cp1252")
    assert "epsilon = infinity" in shown
    assert "epsilon >= 1" in shown


NO_FORMULAS = [r"$\textbf{Ours}$", "costs $5_ or $_6", r"$\frac{a}$", "$x$"]


@pytest.mark.parametrize("name", NO_FORMULAS)
def test_a_figure_shows_dollars_as_they_are_and_ticks_of_log_axes_as_powers(name):
    from matplotlib.figure import Figure

    figure = Figure()
    first, second = figure.subplots(1, 2)
    first.plot([1e-5, 1], [0, 1], label=name)
    first.set_xscale("log")
    first.set(title=name, xlabel=name)
    first.legend(title=name)
    second.set_xticks([0, 1], [name, name])
    figure.suptitle(name)
    as_written(figure)
    svg = drawn(figure)
    assert svg.count(f">{name}<") == 7
    assert "mathdefault" not in svg
    assert re.search(r"font-size: 7px[^>]*>−</tspan>", svg)  # the sign of the exponent of a small power of ten


def drawn(figure):
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        content = io.StringIO()
        figure.savefig(content, format="svg")
    return re.sub(r"<!--.*?-->", "", content.getvalue(), flags=re.DOTALL)


@pytest.mark.parametrize("name", NO_FORMULAS)
def test_figures_of_partitions_and_attacks_show_names_as_they_are(name):
    from attacks.membership.result import membership_result

    report = pf.load("digits", partition=pf.IID(3)).report
    assert drawn(report.figure([name] * 10, name)).count(f">{name}<") == 11
    result = membership_result(name, [1.0, 2, 3, 4], [0, 0, 1, 1], null_scores={name: [1.0, 3, 2, 4]}, seconds=1.0)
    svg = drawn(result.figure())
    assert f">{name}<" in svg
    assert f">null: {name}<" in svg
    assert "mathdefault" not in svg
    svg = drawn(super(type(result), result).figure())
    assert f">{name}<" in svg
