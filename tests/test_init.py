"""The front door: every public name once, looked up once, and nothing else to see."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import privfl as pf
from privfl.algorithms import ALGORITHMS

STUB = Path(pf.__file__).with_suffix(".pyi")


def fresh(program, folder):
    """What ``program`` prints in a new interpreter that starts in ``folder``."""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    return done.stdout.strip() + done.stderr


def test_what_type_checkers_see_is_what_there_is():
    seen = []
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.AnnAssign):
            seen.append(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            assert all(alias.asname == alias.name for alias in node.names), "a stub exports only `name as name`"
            seen += [alias.name for alias in node.names]
    assert sorted(seen) == sorted(set(seen)) == sorted(pf.__all__)


def test_dir_shows_the_public_names_and_nothing_else():
    assert dir(pf) == sorted(pf.__all__)
    assert {"Algorithm", "Experiment", "Field", "FedAvg", "run_study", "simulate", "write_report"} <= set(dir(pf))


def test_every_registered_algorithm_is_public():
    assert {kind.__name__: kind for kind in ALGORITHMS.values()} == {
        kind.__name__: getattr(pf, kind.__name__) for kind in ALGORITHMS.values()
    }


def test_a_name_is_looked_up_once_and_nothing_heavy_before(tmp_path):
    program = "import sys, privfl as pf; print('torch' in sys.modules, 'FedAvg' in vars(pf)); "
    program += "pf.FedAvg; print('torch' in sys.modules, vars(pf)['FedAvg'] is pf.FedAvg)"
    assert fresh(program, tmp_path) == "False False\nTrue True"


def test_the_version_is_that_of_the_installed_package():
    assert pf.__version__ == metadata.version("privfl")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="FedAvgg"):
        _ = pf.FedAvgg


def test_attacks_and_audits_are_reached_through_the_front_door():
    import attacks
    import audits

    assert pf.attacks is attacks
    assert pf.audits is audits
    assert "LiRA" in dir(pf.attacks)
    assert "audit_noise" in dir(pf.audits)
