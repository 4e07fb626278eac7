"""No attack can reach a client's data: what attacks may import, and what their functions take."""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import attacks
from attacks.attack import Attack
from attacks.auxiliary import Auxiliary
from privfl.simulation.transcript import Transcript

FOLDER = Path(attacks.__file__).parent
VICTIMS = (
    "privfl.federation.task",
    "privfl.simulation.simulation",
    "privfl.simulation.plan",
    "privfl.simulation.state",
    "privfl.simulation.callbacks",
    "privfl.engine",
    "privfl.data.partitions",
    "privfl.experiment",
    "privfl.simulation.result",
)
"""Where clients' data can be had, or a run that holds them."""
SHADOWS = "shadow_models.py"
"""Trains models on the attacker's own records, and makes a task of these alone."""
HARNESS = {"judge.py", "stage.py", "battery.py"}
"""Repeat runs, hand over what an attack needs and judge it; no attack is in them."""
STAGES = {"attack.py", "fishing.py", "imprint_attack.py", "model_inconsistency.py", "poisoning.py"}
"""Attackers who change a run before it takes place: there, in ``staged``, they are given its task."""
LOADERS = {"load", "load_dataset", "load_task"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_an_attack_imports_nothing_that_holds_clients(path):
    wrong = {name for name in imported(path) for place in VICTIMS if name == place or name.startswith(place + ".")}
    assert not wrong or path.name in {SHADOWS, *HARNESS, *STAGES}, f"{path.name} imports {sorted(wrong)}"
    assert not {name for name in imported(path) if name.split(".")[-1] in LOADERS and name.startswith("privfl")}


@pytest.mark.parametrize(
    "path", [path for path in sorted(FOLDER.rglob("*.py")) if path.name in STAGES], ids=lambda path: path.name
)
def test_an_attacker_is_given_a_task_to_change_a_run_and_for_nothing_else(path):
    holders = {"Task", "ClientIndex"}
    functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    users = {
        function.name
        for function in functions
        if any(isinstance(node, ast.Name) and node.id in holders for node in ast.walk(function))
    }
    assert users == {"staged"}


@pytest.mark.parametrize(
    "path", [path for path in sorted(FOLDER.rglob("*.py")) if path.name in HARNESS], ids=lambda path: path.name
)
def test_the_harness_guesses_nothing(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert "guess" not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def every_attack() -> list[type[Attack]]:
    for module in pkgutil.walk_packages(attacks.__path__, "attacks."):
        import_module(module.name)
    found, waiting = [], [Attack]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.startswith("attacks."):
            found.append(kind)
    return found


def test_every_attack_takes_a_transcript_and_auxiliary_data_and_nothing_else():
    kinds = every_attack()
    for kind in kinds:
        assert list(inspect.signature(kind.run).parameters) == ["self", "seen", "auxiliary"], kind
        hints = inspect.get_annotations(kind.guess, eval_str=True)
        assert hints["seen"] is Transcript, kind
        assert hints["auxiliary"] is Auxiliary, kind
        assert kind.run is Attack.run, f"{kind.__name__} has a run of its own, which could pass the answers on"
