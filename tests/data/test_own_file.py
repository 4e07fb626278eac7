"""One's own data from files: arrays, CSV and Parquet with a client column, and a sentence for each mistake."""

import importlib.util

import numpy as np
import pytest

from privfl.data.own_file import Arrays
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.simulation.caveats import assumptions
from tests.damaged_archives import DAMAGES

TABLE = "record,hospital,age,dose,died\n" + "".join(
    f"r{row},{'north' if row % 2 else 'south'},{row}.5,{row % 7},{'yes' if row % 3 else 'no'}\n" for row in range(60)
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def chosen(path, **other):
    return Arrays(**{"file": str(path), "target": "died", "client": "hospital", "leave_out": ("record",), **other})


def test_a_csv_becomes_features_labels_and_clients(table):
    data = chosen(table).dataset(0)
    assert (data.num_clients, data.classes, tuple(data.inputs.shape[1:])) == (2, 2, (2,))
    assert len(data.targets) + len(data.test_targets) == 60
    ages = np.concatenate([data.inputs[:, 0].numpy(), data.test_inputs[:, 0].numpy()])
    labels = np.concatenate([data.targets.numpy(), data.test_targets.numpy()])
    assert sorted(ages.tolist()) == [row + 0.5 for row in range(60)]
    assert [int(int(age) % 3 != 0) for age in ages] == labels.tolist()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"client": "clinic"}, r"has no column 'clinic', which arrays\.client names; it has 'record', 'hospital'"),
        ({"target": "dead"}, r"has no column 'dead', which arrays\.target names"),
        ({"leave_out": ("id",)}, r"has no column 'id', which arrays\.leave_out names"),
        ({"leave_out": ()}, r"column 'record' holds 'r0' in its row 1; encode it as a number"),
        ({"leave_out": ("record", "age", "dose")}, "no column left for features"),
    ],
)
def test_a_column_that_is_not_there_or_no_number_is_one_sentence(table, settings, sentence):
    with pytest.raises(DataError, match=sentence):
        chosen(table, **settings).dataset(0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,died\n1,0\n2\n", "row 3 has 1 values and the first line 2 names"),
        ("a,a\n1,0\n", "names two columns alike"),
        ("a,died\n", "holds no rows"),
        ("a,died\n1,\n", "column 'died' is empty in its row 1"),
        ("a,died\n1,0.5\n", r"holds 0\.5 in its row 1; give whole class numbers"),
    ],
)
def test_a_damaged_csv_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=sentence):
        Arrays(str(path), target="died").dataset(0)


@pytest.mark.parametrize("cell", ["", "  ", '""'])
def test_a_row_of_no_client_is_refused_with_its_line(tmp_path, cell):
    path = tmp_path / "t.csv"
    path.write_text(f"site,a,died\nnorth,1,0\n\n{cell},2,1\nsouth,3,0\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.csv: the column 'site' is empty in its row 2 \(line 4\).*fill it in, or"):
        Arrays(str(path), target="died", client="site").dataset(0)


def test_a_label_of_blanks_is_no_class(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,died\n1,yes\n2, \n3,no\n", encoding="utf-8")
    with pytest.raises(DataError, match="column 'died' is empty in its row 2; every row needs a label"):
        Arrays(str(path), target="died").dataset(0)


def test_an_archive_brings_its_own_test_rows_and_clients(tmp_path):
    rng = np.random.default_rng(0)
    parts = {"inputs": rng.normal(size=(20, 3)).astype("float32"), "targets": np.arange(20) % 2}
    tests = {"test_inputs": rng.normal(size=(6, 3)).astype("float32"), "test_targets": np.arange(6) % 2}
    np.savez(tmp_path / "d.npz", **parts, **tests, clients=np.arange(20) % 4)
    data = Arrays(str(tmp_path / "d.npz")).dataset(0)
    assert (data.num_clients, len(data.targets), len(data.test_targets)) == (4, 20, 6)
    np.savez(tmp_path / "e.npz", inputs=parts["inputs"])
    with pytest.raises(DataError, match=r"holds no array 'targets' \(it holds 'inputs'\)"):
        Arrays(str(tmp_path / "e.npz")).dataset(0)
    np.savez(tmp_path / "f.npz", **parts, test_inputs=tests["test_inputs"])
    with pytest.raises(DataError, match="holds one of test_inputs and test_targets"):
        Arrays(str(tmp_path / "f.npz")).dataset(0)
    (tmp_path / "g.npz").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"no \.npz archive of plain arrays"):
        Arrays(str(tmp_path / "g.npz")).dataset(0)


def test_a_file_named_like_a_dataset_of_the_catalog_is_not_taken_for_it(tmp_path):
    for name in ("mnist", "own"):
        np.savez(tmp_path / f"{name}.npz", inputs=np.zeros((20, 3), np.float32), targets=np.arange(20) % 2)
    assert Arrays(str(tmp_path / "mnist.npz")).dataset(0).name == "mnist.npz"
    assert Arrays(str(tmp_path / "own.npz")).dataset(0).name == "own"


def with_labels(path, labels, **settings):
    path.write_text("a,dx\n" + "".join(f"{row}.5,{label}\n" for row, label in enumerate(labels)), encoding="utf-8")
    return Arrays(str(path), target="dx", **settings).dataset(0)


def labels_by_row(data):
    rows = [*data.inputs[:, 0].tolist(), *data.test_inputs[:, 0].tolist()]
    return dict(zip(rows, [*data.targets.tolist(), *data.test_targets.tolist()], strict=True))


def test_texts_are_numbered_by_the_list_of_classes_whichever_of_them_occur(tmp_path):
    labels = ["b", "c"] * 10
    with_a, without = (with_labels(tmp_path / "t.csv", labels + more, classes=("a", "b", "c")) for more in (["a"], []))
    rest = labels_by_row(with_a)
    assert rest.pop(20.5) == 0
    assert rest == labels_by_row(without) == {row + 0.5: 1 + row % 2 for row in range(20)}
    assert with_a.class_names == without.class_names == ("a", "b", "c")
    assert with_a.read_off == ("test rows",)
    with pytest.raises(
        DataError, match=r"'dx' holds 'a' in its row 21, and arrays\.classes are 'b', 'c'; mend the value"
    ):
        with_labels(tmp_path / "t.csv", [*labels, "a"], classes=("b", "c"))


@pytest.mark.parametrize(("classes", "named"), [(3, ()), (None, ("classes",))])
def test_texts_that_are_ranked_among_themselves_are_read_off_the_data(tmp_path, classes, named):
    data = with_labels(tmp_path / "t.csv", ["b", "c"] * 10, classes=classes)
    assert data.read_off == (*named, "test rows", "class names")
    numbers = with_labels(tmp_path / "t.csv", [0, 1] * 10, classes=classes)
    assert numbers.read_off == (*named, "test rows")


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (
            "unknown",
            r"holds numbers and texts, '0' in its row 1 and 'unknown' in its row 21; .*list all classes in arrays",
        ),
        ("1e30", r"holds 1e30 in its row 21; give whole class numbers, or set arrays\.kind"),
        ("nan", r"holds nan in its row 21; give whole class numbers"),
        ("-inf", r"holds -inf in its row 21; give whole class numbers"),
    ],
)
def test_a_label_that_is_no_class_number_is_named_as_it_stands(tmp_path, cell, sentence):
    with pytest.raises(DataError, match=sentence):
        with_labels(tmp_path / "t.csv", [*[0, 1] * 10, cell], classes=2)


@pytest.mark.parametrize("cell", ["1.5", "nan", "1e30", "x"])
def test_a_token_id_that_is_no_whole_number_is_named_as_it_stands(tmp_path, cell):
    path = tmp_path / "tokens.csv"
    path.write_text("t0,t1\n1,2\n" + f"{cell},2\n" * 3, encoding="utf-8")
    with pytest.raises(
        DataError, match=rf"'t0' holds {cell} in its row 2; give whole token ids, or name the column in"
    ):
        Arrays(str(path), kind="next-token", vocabulary=5).dataset(0)


def test_names_and_a_factor_that_cannot_be_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match=r"arrays\.classes names 'a' twice"):
        Arrays("t.csv", classes=("a", "a"))
    with pytest.raises(ConfigError, match=r"arrays\.scale is 1e-60; give a number between 1e-25 and 1e\+25"):
        Arrays("t.csv", scale=1e-60)


def test_an_experiment_file_lists_the_names_of_classes(table, tmp_path):
    settings = {"file": str(table), "target": "died", "client": "hospital", "leave_out": ["record"]}
    experiment = Experiment.from_dict({"arrays": settings | {"classes": ["yes", "no"]}})
    (tmp_path / "e.toml").write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.from_toml(tmp_path / "e.toml") == experiment
    assert experiment.task().read_off == ("test rows",)
    ranked = Experiment.from_dict({"arrays": settings | {"classes": 2}}).task()
    said = "which number each class has (list their names: arrays.classes = […])"
    assert said in assumptions(ranked)


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_archive_that_was_damaged_is_refused_in_a_sentence(damage, tmp_path):
    np.savez(tmp_path / "d.npz", inputs=np.zeros((20, 3), np.float32), targets=np.arange(20) % 2)
    damage(tmp_path / "d.npz")
    with pytest.raises(DataError, match=r"d\.npz is no \.npz archive of plain arrays .*write it by numpy\.savez"):
        Arrays(str(tmp_path / "d.npz")).dataset(0)


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file; give its path from"):
        Arrays(str(tmp_path / "x.csv")).dataset(0)
    with pytest.raises(ConfigError, match=r"ends in \.npz, \.csv, \.parquet"):
        Arrays("x.xlsx")


def test_parquet_is_read_or_says_what_to_install(tmp_path):
    path = tmp_path / "t.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"")
        with pytest.raises(
            ConfigError, match=r"needs pyarrow, which is not installed: pip install 'privfl\[parquet\]'"
        ):
            Arrays(str(path)).dataset(0)
        return
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"x": [float(row) for row in range(20)], "target": [row % 2 for row in range(20)]}), path)
    assert len(Arrays(str(path)).dataset(0).targets) == 16


def test_numbers_labels_and_tokens_are_predicted_as_well(table, tmp_path):
    dose = chosen(table, kind="regression", target="dose", leave_out=("record", "died")).dataset(0)
    assert (dose.kind, dose.classes, dose.targets.dtype) == ("regression", 1, dose.inputs.dtype)
    assert {float(value) for value in dose.targets[:, 0]} <= set(range(7))
    both = chosen(table, kind="regression", target=("age", "dose"), leave_out=("record",), client=None)
    with pytest.raises(DataError, match="column 'hospital' holds 'south'"):
        both.dataset(0)
    several = tmp_path / "labels.csv"
    several.write_text("a,b,x,y\n" + "".join(f"{row}.5,{row},{row % 2},{row % 3 == 0:d}\n" for row in range(40)))
    labels = Arrays(str(several), target=("x", "y"), kind="multi-label").dataset(0)
    assert (labels.classes, tuple(labels.targets.shape[1:]), tuple(labels.inputs.shape[1:])) == (2, (2,), (2,))
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("t0,t1,t2\n" + "".join(f"{row % 5},{(row + 1) % 5},0\n" for row in range(40)))
    text = Arrays(str(tokens), kind="next-token", vocabulary=5, padding=0).dataset(0)
    assert text.inputs.shape[1:] == text.targets.shape[1:] == (2,)
    assert (text.targets[:, 1] == -100).all()
    archive = tmp_path / "tokens.npz"
    np.savez(archive, inputs=np.arange(60).reshape(20, 3) % 5, test_inputs=np.zeros((4, 3), dtype=int))
    stored = Arrays(str(archive), kind="next-token", vocabulary=5).dataset(0)
    assert (stored.targets[:, 0] == stored.inputs[:, 1]).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target": ("age", "died")}, r"classification has one target; name one column, or set arrays\.kind"),
        ({"target": (), "kind": "regression"}, r"arrays\.target is empty"),
        ({"kind": "next-token"}, "add vocabulary, how many token ids there are"),
        ({"kind": "regresion"}, "kind"),
    ],
)
def test_a_kind_that_does_not_fit_is_one_sentence(table, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        chosen(table, **settings)
