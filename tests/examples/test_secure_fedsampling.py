"""The example that composes size answers, secure sums and noise in shares runs, and explains all four cells."""

from pathlib import Path

from tests.programs import python

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure_fedsampling.py"


def test_the_example_explains_the_four_cells_of_its_statement(tmp_path):
    done = python(EXAMPLE, "--rounds", "2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "∞" not in done.stdout
    for cell in ("client / server", "client / public", "sample / server", "sample / public"):
        assert f"{cell}, ε = " in done.stdout
    assert (tmp_path / "run" / "statement.json").exists()
