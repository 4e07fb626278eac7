"""One schema for TOML file, Python object and overrides; every mistake is one sentence that names the key."""

import contextlib
import tomllib
from dataclasses import fields, replace
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest
import tomli_w

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.data.catalog import datasets
from privfl.data.label_noise import LABEL_NOISE
from privfl.data.partitions import PARTITIONS
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.availability import AVAILABILITY
from privfl.federation.cohorts import COHORTS
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.schema import Named, build, choose, plain
from privfl.simulation.settings import Execution, Schedule

REQUIRED = {
    "iid": {"clients": 4},
    "dirichlet": {"clients": 4, "alpha": 0.5},
    "pathological": {"clients": 4},
    "label-sorted": {"clients": 4},
    "log-normal": {"clients": 4},
    "long-tail": {"clients": 4},
    "given-sizes": {"sizes": [3, 2, 1]},
    "bernoulli": {"probability": 0.5},
    "persistent": {"probability": 0.5, "period": 2},
    "per-cluster": {"probabilities": [0.5, 0.25]},
    "fixed-fraction": {"fraction": 0.5},
    "markov": {"go_offline": 0.1, "come_back": 0.2},
    "pair": {"rate": 0.1},
    "symmetric": {"rate": 0.1},
    "fixed": {"size": 3},
    "poisson": {"probability": 0.5},
    "rotation": {"period": 3},
    "size-weighted": {"size": 3},
    "clip": {"max_norm": 1.0},
    **{
        f"{kind}-noise": {"noise_multiplier": 1.0}
        for kind in ("gaussian", "discrete-gaussian", "skellam", "tree", "banded")
    },
    "adaptive-clip": {"initial_norm": 1.0},
}
SIZE = {"epsilon": 2.0, "bound": 50}
REGISTRIES = {
    "algorithm": ALGORITHMS,
    "partition": PARTITIONS,
    "availability": AVAILABILITY,
    "label_noise": LABEL_NOISE,
    "cohort": COHORTS,
}
COMPONENTS = [(key, name) for key, registry in REGISTRIES.items() for name in registry]


def section(name, **fields):
    return {"name": name, **REQUIRED.get(name, {}), **fields}


@pytest.mark.parametrize(("key", "name"), COMPONENTS)
def test_every_component_survives_the_round_trip(key, name):
    experiment = Experiment.from_dict({key: section(name)})
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment


NUMBERS = (0.25, 0.5, 0.75, 1.5, 2.5, 12.5, 0.0, 1.0, 100.0)
CANDIDATES = {
    bool: (True, False),
    int: (2, 3, 4, 1, 7, 64),
    float: NUMBERS,
    str: ("identity", "digits"),
    tuple[float, ...]: ((0.25, 0.75), (1.5, 2.0)),
    tuple[int, ...]: ((1, 2), (4, 5, 6)),
}
TOGETHER = {
    "aaggff-d-sums.response_epsilon": None,  # this algorithm takes no other value than its default
    "grp-fed.form": {"form": "sums", "loss_report": "pre_eval", "lambda_max": 1.0, "sigma_scope": "participants"},
    "propfair.loss_bound": {"loss_bound": 2.0, "per_sample": True},
    "dirichlet.size_alpha": {"size_alpha": 2.0, "skew": "both"},
    "clustered.clusters": {"clusters": 2, "classes_per_client": (3, 4)},
    "clustered.classes_per_client": {"clusters": 2, "classes_per_client": (3, 4)},
    "given-sizes.dataset": {"dataset": "shakespeare", "sizes": ()},
    "label-sorted.block_size": {"block_size": 5, "clients": None},
    "log-normal.mean_size": {"mean_size": 2.5, "clients": None},
}
"""Settings that only go with others."""
ON_RAY = {"address": "127.0.0.1:6379", "gpus": 0.5, "inside": "vectorised"}


def others(part):
    """``part`` with one field other than it is, for every field and every value that it may have."""
    hints = get_type_hints(type(part))
    for item in fields(part):
        hint = hints[item.name]
        arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        found = []
        for arm in arms:
            for value in get_args(arm) if get_origin(arm) is Literal else CANDIDATES.get(arm, ()):
                with contextlib.suppress(ConfigError):
                    found.append(replace(part, **{item.name: value}))
        found = [other for other in found if getattr(other, item.name) != getattr(part, item.name)]
        yield item.name, found


@pytest.mark.parametrize(("key", "name"), COMPONENTS)
def test_every_field_of_every_component_survives_the_round_trip(key, name):
    part = getattr(Experiment.from_dict({key: section(name)}), key, None)
    part = part or getattr(Experiment.from_dict({key: section(name)}).recipe, key)
    for setting, found in others(part):
        changes = {} if found else TOGETHER[f"{name}.{setting}"]
        for other in found or ([] if changes is None else [replace(part, **changes)]):
            assert choose(REGISTRIES[key], tomllib.loads(tomli_w.dumps(told(other, key))), key) == other


@pytest.mark.parametrize("kind", [Schedule, Execution, pf.LocalTraining, pf.LocalTests, pf.Budget])
def test_every_field_of_every_table_survives_the_round_trip(kind):
    part = kind(**({"epsilon": 1.0} if kind is pf.Budget else {}))
    for setting, found in others(part):
        if kind is Execution and setting in ON_RAY:  # belongs to one engine
            found = [Execution(engine="ray", **{setting: ON_RAY[setting]})]
        assert found or setting == "device", f"no other value of {setting} is known to this test"
        for other in found:
            values = {name: value for name, value in plain(other).items() if value is not None}
            assert build(kind, tomllib.loads(tomli_w.dumps(values))) == other


def told(part, key):
    registries = {type(part).__mro__[-1]: REGISTRIES[key]}
    return {name: value for name, value in plain(part, registries).items() if value is not None}


@pytest.mark.parametrize("name", SIZE_MECHANISMS)
def test_every_privacy_setting_survives_the_round_trip(name):
    privacy = {
        "target_delta": 1e-6,
        "noise_key": 3,
        "max_size_error": 4.0,
        "training": {"noise_multiplier": [1.0, 2.0], "sample_rate": 0.3, "max_grad_norm": 0.5},
        "size": {"name": name, **SIZE, "refresh": 4},
        "budget": {"epsilon": 3.0, "unit": "client", "observer": "server"},
        "update": [section(mechanism) for mechanism in UPDATE_MECHANISMS],
        "statistics": [{"statistic": "prototypes", "max_norm": 2.0, "noise_multiplier": 1.5}],
    }
    held = {"fraction": 0.3, "validation": 0.1, "global_test": "union"}
    experiment = Experiment.from_dict({"privacy": privacy, "local_tests": held})
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())) == experiment
    assert experiment.privacy.training.noise_multiplier == (1.0, 2.0)


@pytest.mark.parametrize("entry", datasets(), ids=lambda entry: entry.name)
def test_every_dataset_can_be_named(entry):
    assert Experiment.from_dict({"dataset": {"name": entry.name}}).recipe.dataset == Named(entry.name)


def test_defaults_work(tmp_path):
    run = Experiment.from_dict({"rounds": 1, "partition": section("iid"), "model": {"name": "logistic"}}).run()
    assert run.summary["algorithm"] == "fedavg"


def test_an_override_wins_over_the_file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text('rounds = 3\n[training]\nepochs = 2\n[algorithm]\nname = "fedprox"\n')
    overrides = [
        "training.epochs=5",
        "algorithm.mu=0.5",
        "algorithm.weighting=uniform",
        "privacy.training.noise_multiplier=1",
    ]
    experiment = Experiment.from_toml(path, overrides)
    assert experiment.training.epochs == 5
    assert experiment.algorithm.mu == 0.5
    assert experiment.algorithm.weighting == "uniform"
    assert experiment.privacy.training.noise_multiplier == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roundz": 1}, "unknown key 'roundz': did you mean 'rounds'"),
        ({"rounds": True}, "rounds is True"),
        ({"rounds": "3"}, "rounds is '3'"),
        ({"privacy": {"statistics": {"statistic": "x"}}}, "privacy.statistics is not a list"),
        ({"privacy": {"statistics": [{"statistic": "x"}]}}, "privacy.statistics needs max_norm"),
        ({"local_tests": {"fraction": 2.0}}, "^local_tests.fraction is 2.0"),
        ({"rounds": 0}, "rounds is 0; give a whole number of at least 1"),
        ({"algorithm": {"name": "fedavgg"}}, "unknown algorithm 'fedavgg': did you mean 'fedavg'"),
        ({"algorithm": {"mu": 1.0}}, r"\[algorithm\] has no name"),
        ({"algorithm": {"name": "fedprox", "muu": 1}}, "unknown key 'algorithm.muu': did you mean 'algorithm.mu'"),
        ({"algorithm": {"name": "fedprox", "nme": "x"}}, "unknown key 'algorithm.nme': did you mean 'algorithm.name'"),
        ({"algorithm": {"name": "fedprox", "mu": -1}}, "algorithm: fedprox's mu is -1.0"),
        ({"algorithm": {"name": "fedprox", "mu": "x"}}, "algorithm.mu is 'x'; give a number"),
        ({"algorithm": {"name": "fedavg", "weighting": "sise"}}, "algorithm.weighting is 'sise'"),
        ({"partition": {"name": "dirichlet", "clients": 5}}, "partition needs alpha"),
        ({"partition": {"name": "iid", "clients": 2.5}}, "partition.clients is 2.5"),
        ({"privacy": {"trainning": {}}}, "unknown key 'privacy.trainning': did you mean 'privacy.training'"),
        ({"privacy": {"training": {}}}, "exactly one of noise_multiplier and target_epsilon"),
        ({"privacy": {"training": 1.0}}, r"privacy.training is 1.0; write a table, \[privacy.training\]"),
        ({"privacy": {"update": {"name": "clip"}}}, r"privacy.update is not a list .*\[\[privacy.update\]\]"),
        ({"privacy": {"update": [{"name": "klip", "max_norm": 1}]}}, "did you mean 'clip'"),
        ({"privacy": {"size": {"name": "gr", **SIZE}}}, "did you mean 'grr'"),
        ({"privacy": {"target_delta": 2.0}}, "privacy.target_delta is 2.0"),
        ({"dataset": {"name": "digitz"}}, "did you mean 'digits'"),
        ({"dataset": {"name": "digits", "test_fractoin": 0.1}}, "did you mean 'dataset.test_fraction'"),
        ({"dataset": {"name": 3}}, "dataset.name is 3"),
        ({"training": 3}, r"training is 3; write a table, \[training\]"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate is 0"),
        ({"availability": {"name": "bernoulli", "probability": 2}}, "availability: probability is 2"),
        ({"model": {"hidden": 3}}, r"\[model\] has no name"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Experiment.from_dict(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["rounds = ", "[a", "\x00"])
def test_what_is_not_toml_is_one_sentence(tmp_path, text):
    path = tmp_path / "e.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        Experiment.from_toml(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        Experiment.from_toml(tmp_path / "none.toml")


@pytest.mark.parametrize("assignment", ["rounds", "=3", "rounds.deep=1"])
def test_an_override_that_makes_no_sense_is_one_sentence(tmp_path, assignment):
    path = tmp_path / "e.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match="--set"):
        Experiment.from_toml(path, [assignment])


def test_an_unknown_model_is_refused_before_training():
    experiment = Experiment.from_dict({"partition": section("iid"), "model": {"name": "two-cn"}})
    with pytest.raises(ConfigError, match=r"did you mean 'two-c?nn'"):
        experiment.run()
