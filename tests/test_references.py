"""``module:Name`` is imported from where Python looks or the working directory, or one sentence says why not."""

from dataclasses import replace
from functools import partial

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.references import called, imported, reference, shipped
from tests import own_parts
from tests.own_parts import NoDataclass, Small, Undescribed


def test_a_class_or_function_of_a_module_is_imported_again():
    for thing in (own_parts.Halved, own_parts.focal, pf.FedAvg, own_parts.Halved.aggregate):
        assert imported(reference(thing), "key") is thing


def test_any_part_is_called_after_the_code_that_it_runs():
    assert called(own_parts.focal) == called(partial(own_parts.focal, 2)) == "tests.own_parts:focal"
    assert called(own_parts.Halved) == called(own_parts.Halved()) == "tests.own_parts:Halved"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "tests.own_parts:hospitals", "model": {"name": "logistic"}}, r"\[model\] stands beside task"),
        ({"task": "tests.own_parts:hospitals", "dataset": {"name": "digits"}}, "keep one"),
        ({"task": "hospitals"}, "task is 'hospitals'; name it as 'module:Name'"),
        ({"task": "nowhere_at_all:hospitals"}, "importing the module nowhere_at_all fails"),
        ({"task": "tests.own_parts:hospital"}, "tests.own_parts has no 'hospital'"),
        (
            {"algorithm": {"name": "tests.own_parts:Small"}},
            "algorithm.name is 'tests.own_parts:Small', which is no Algorithm",
        ),
        ({"algorithm": {"name": "tests.own_parts:Halved", "factr": 1}}, "did you mean 'algorithm.factor'"),
        ({"algorithm": {"name": "tests.own_parts:Halved", "factor": "x"}}, "algorithm.factor is 'x'; give a number"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        Experiment.from_dict(settings).task()
    assert "\n" not in str(caught.value)


def test_what_no_file_can_name_is_refused_on_reading_with_what_to_do():
    class Local(pf.FedAvg):
        pass

    script = type("Script", (pf.FedAvg,), {"__module__": "__main__", "__qualname__": "Script"})
    for part, sentence in (
        (
            {"algorithm": Local()},
            "defined inside a function, which cannot be imported; define it with a name at the top",
        ),
        ({"algorithm": script()}, "defined in the script that was run, which cannot be imported; move it to a module"),
        ({"algorithm": NoDataclass()}, "cannot be built from its fields"),
    ):
        settings = replace(Experiment.from_dict({}), **part).to_dict()
        with pytest.raises(ConfigError, match=sentence) as caught:
            Experiment.from_dict(settings)
        assert "\n" not in str(caught.value)
    for options, sentence in (
        ({"model": lambda: Small()}, "a lambda or defined inside a function"),
        ({"loss": Undescribed()}, "an object that cannot be written down; make its class a dataclass"),
    ):
        task = pf.load("digits", partition=pf.IID(3), **options)
        settings = Experiment.from_dict({}).for_task(task).to_dict()
        with pytest.raises(ConfigError, match=sentence):
            Experiment.from_dict(settings).task()


def test_a_module_in_the_working_directory_is_found_and_its_own_errors_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_the_file.py").write_text(
        "from tests.own_parts import *\nclass Third(Halved):\n    pass\n", encoding="utf-8"
    )
    (tmp_path / "broken_beside.py").write_text("1 / 0\n", encoding="utf-8")
    assert Experiment.from_dict({"algorithm": {"name": "beside_the_file:Third"}}).algorithm.factor == 0.5
    with pytest.raises(ConfigError, match=r"importing the module broken_beside fails \(ZeroDivisionError"):
        Experiment.from_dict({"algorithm": {"name": "broken_beside:Third"}})


class EqualToAll(type(pf.Clip)):
    """A class of this kind says that it is any other one."""

    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return hash(pf.Clip)


def test_a_class_that_claims_to_equal_one_of_privfl_is_none():
    pretender = EqualToAll("Clip", (pf.Clip,), {})
    assert shipped(pf.Clip)
    assert shipped(pf.Clip), "asked once more, which is remembered"
    assert pretender == pf.Clip
    assert not shipped(pretender)
