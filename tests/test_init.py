"""The front door: every public name once, looked up once, and nothing else to see."""

import ast
import json
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
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout.strip() + done.stderr


IMPORT_AND_RUN = """
import importlib, json, logging, pkgutil, sys
import torch

REACHES_OUT = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "http.client.connect", "urllib.Request")
asked = []
sys.addaudithook(lambda event, details: asked.append([event, repr(details)]) if event in REACHES_OUT else None)

def logging_state():
    named = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    spoken = {one.name: [repr(handler) for handler in one.handlers if not isinstance(handler, logging.NullHandler)]
              for one in named}
    return {"root": [logging.root.level, *map(repr, logging.root.handlers)], **{k: v for k, v in spoken.items() if v}}

before = logging_state()
import privfl as pf
for package in (pf, pf.attacks, pf.audits):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
imported = logging_state()
task = pf.load("digits", partition=pf.Dirichlet(clients=2, alpha=1.0), model="logistic")
for way in ("auto", "opacus"):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.25, per_sample=way))
    run = pf.simulate(task, pf.FedAvg(weighting="uniform"), privacy=privacy, rounds=1)
    str(run.statement)
print(json.dumps({"before": before, "imported": imported, "ran": logging_state(), "asked": asked}))
"""
"""Every module, and DP-SGD with our rules and with Opacus' hooks, watched by an audit hook."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    return json.loads(fresh(IMPORT_AND_RUN, tmp_path_factory.mktemp("watched")).splitlines()[-1])


def test_importing_and_running_adds_no_log_handler(watched):
    def ours(state):  # PyTorch gives handlers to loggers of its own, more of them with each of its parts
        return {name: handlers for name, handlers in state.items() if not name.startswith(("torch", "strobelight"))}

    assert ours(watched["imported"]) == ours(watched["ran"]) == {"root": watched["before"]["root"]}
    assert watched["before"]["root"] == [30]


def test_nothing_is_fetched_that_nobody_asked_for(watched):
    assert watched["asked"] == []


def test_what_type_checkers_see_is_what_there_is():
    seen = []
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign):
            seen.append(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            assert all(alias.asname == alias.name for alias in node.names), "a stub exports only `name as name`"
            seen += [alias.name for alias in node.names]
    assert sorted(seen) == sorted(set(seen)) == sorted(pf.__all__)


def test_dir_shows_the_public_names_and_nothing_else():
    assert dir(pf) == sorted(pf.__all__)
    assert {"Algorithm", "Experiment", "Field", "FedAvg", "Study", "simulate", "write_report"} <= set(dir(pf))


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
