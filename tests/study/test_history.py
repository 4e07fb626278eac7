"""Whatever a study once released is never forgotten: with an edited file, a removed directory or a removed index."""

import math
import shutil

import pytest

import privfl as pf
import privfl.study.tune as tune
from privfl.errors import DataError
from privfl.study.history import History
from privfl.study.results import Results
from privfl.study.shown import report_study
from privfl.study.store import CELLS, Member, Store
from privfl.study.sweep import together
from privfl.study.tables import Format, write_table
from privfl.study.tuning import Tuning
from tests.study.stores import small

RATE = "training.learning_rate"


def run_of(out, base, **settings) -> Results:
    return pf.Study(base, **{"title": "t", "metric": "test_accuracy", **settings}).run(out, processes=1)


def public(found: Results) -> float:
    return found.members[0].metrics["epsilon sample/public"]


@pytest.fixture
def base(tmp_path):
    return small(tmp_path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.parametrize("index_removed", [False, True])
def test_runs_of_an_earlier_form_of_a_study_count_in_what_all_runs_together_spent(base, out, index_removed):
    first = run_of(out, base, grid={RATE: [0.1, 0.2]})
    if index_removed:
        (out / "results.sqlite").unlink()
    edited = run_of(out, base, grid={RATE: [0.5]})
    assert edited.former.runs == tuple(one.run for one in first.members)
    assert "Earlier forms of this study had 2 runs and 0 trials" in write_table(edited, Format.text)
    page = report_study(edited, Store(out), out / "t").read_text(encoding="utf-8")
    assert "Earlier forms of the study had 2 runs and 0 trials that it has no more: they count in the last row" in page
    whole = run_of(out, base, grid={RATE: [0.1, 0.2, 0.5]})
    assert whole.former.runs == ()
    names = [one.run for one in whole.members]
    spent = together(out / "runs", names).cell("sample", "public").epsilon
    assert spent == together(out / "runs", names[2:], (), names[:2]).cell("sample", "public").epsilon
    assert f"{spent:.2f}"[:3] in page


def test_trials_that_were_had_before_a_study_was_edited_count_with_its_runs(base, out, tmp_path, monkeypatch):
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tune, "filed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_of(out, base, tuning=Tuning(RATE, (0.1, 0.5, 0.7, 0.9), choice_epsilon=1.0))
    edited = run_of(out, base, tuning=Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0))
    fresh = run_of(tmp_path / "two", base, tuning=Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0))
    all_four = run_of(tmp_path / "four", base, tuning=Tuning(RATE, (0.1, 0.5, 0.7, 0.9), choice_epsilon=1.0))
    assert len(edited.former.trials) == 2
    assert public(fresh) + 0.1 < public(edited) == pytest.approx(public(all_four))


def test_an_exact_pick_of_a_study_with_other_rounds_is_not_forgotten(base, out):
    run_of(out, base, tuning=Tuning(RATE, (0.1, 0.5)))
    edited = run_of(out, {**base, "rounds": 3}, tuning=Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0))
    assert public(edited) == math.inf
    assert any("picked by exact figures" in one for one in next(iter(edited.tuned.values()))["reasons"])


@pytest.mark.parametrize("name", ["t", "another"])
def test_a_run_whose_value_was_picked_keeps_the_cost_of_the_pick_without_tuning(base, out, name):
    tuned = run_of(out, base, tuning=Tuning(RATE, (0.1, 0.5)))
    value = float(tuned.rows()[0].tuned.rpartition(" ")[2])
    plain = run_of(out, {**base, "training": {"learning_rate": value}}, title=name)
    assert plain.members[0].run == tuned.members[0].run
    assert {plain.members[0].metrics[f"epsilon {cell}"] for cell in CELLS} == {math.inf}
    assert plain.rows()[0].tuned == tuned.rows()[0].tuned
    again = run_of(out, {**base, "training": {"learning_rate": value}}, title=name)
    assert again.members == plain.members


def test_a_pick_that_is_made_again_since_its_file_was_removed_counts_twice(base, out):
    study = {"tuning": Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0)}
    first = public(run_of(out, base, **study))
    shutil.rmtree(out / "choices")
    with Store(out)._open() as database:
        database.execute("UPDATE studies SET source = ''")
    assert public(run_of(out, base, **study)) > first + 0.5


@pytest.mark.parametrize("settings", [{}, {"tuning": Tuning(RATE, (0.1, 0.5), choice_epsilon=1.0)}])
def test_a_run_that_was_removed_and_had_anew_claims_nothing(base, out, settings):
    (run,) = run_of(out, base, **settings).members
    assert run.metrics["epsilon sample/public"] < math.inf
    shutil.rmtree(out / "runs" / run.run)
    again = run_of(out, base, **settings)
    assert public(again) == math.inf
    assert "directories were removed after they had released something" in write_table(again, Format.text)
    assert public(Results.of(Store(out), "t")) == math.inf
    page = report_study(again, Store(out), out / "t").read_text(encoding="utf-8")
    assert "directories were removed after they had released something" in page


def test_a_former_run_that_is_gone_leaves_no_claim_to_all_runs_together(base, out):
    (former,) = run_of(out, base).members
    shutil.rmtree(out / "runs" / former.run)
    found = run_of(out, base, grid={RATE: [0.1]})
    assert public(found) < math.inf
    whole = together(out / "runs", [one.run for one in found.members], (), found.former.runs)
    assert whole.finite() == {}
    assert any(f"the directory of {former.run} was removed" in one for one in whole.cells[0].reasons)


def test_a_run_that_never_began_and_one_that_begins_again_without_having_released_anything_cost_nothing(tmp_path):
    history = History(tmp_path)
    history.enrol("t", ["a", "b", ""])
    history.enrol("t", ["c"])
    assert history.runs_of("t") == ["a", "b", "c"]
    assert history.standing("a") == "never"
    for _ in range(2):  # as where its data could not be had at first
        history.begin("a", known=False)
    assert history.standing("a") == "never"
    (tmp_path / "runs" / "a" / "environment.json").write_text("{}")
    assert history.standing("a") == "open"
    history.sent("a")
    shutil.rmtree(tmp_path / "runs" / "a")
    assert history.standing("a") == "gone"
    history.begin("a", known=False)
    (tmp_path / "runs" / "a" / "environment.json").write_text("{}")
    assert history.standing("a") == "gone"  # what the first released does not come back


def test_of_a_run_that_did_not_end_before_the_study_was_edited_nothing_is_known(base, out):
    (run,) = run_of(out, base).members
    (out / "runs" / "half").mkdir()
    (out / "runs" / "half" / "environment.json").write_text("{}")
    whole = together(out / "runs", [run.run], (), ["half", "never"])
    assert whole.finite() == {}
    assert any("half of an earlier form of the study did not come to an end" in one for one in whole.cells[0].reasons)


def test_what_an_index_of_an_earlier_version_knows_is_noted_before_it_is_replaced(tmp_path):
    store = Store(tmp_path)
    told = {"title": "t", "metric": "accuracy"}
    store.enrol("t", "x", told, [Member("A", "l", 0, "a")])
    with store._open() as database:
        database.execute("UPDATE runs SET state = 'done'")
    shutil.rmtree(tmp_path / "history")
    store.enrol("t", "y", told, [Member("A", "l", 0, "b")])
    assert store.history.runs_of("t") == ["a", "b"]
    assert [store.history.standing(run) for run in "ab"] == ["gone", "never"]


def test_a_damaged_history_is_one_sentence(tmp_path):
    history = History(tmp_path)
    history.enrol("t", ["a"])
    (tmp_path / "history" / "studies" / "t.json").write_text("{")
    with pytest.raises(DataError, match="nobody can tell what was released before, so begin anew with another --out"):
        history.runs_of("t")
