"""Whatever is given to `pf.simulate`, and to any constructor, is taken or refused in one sentence before any work."""

import inspect
import math
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError, PrivflError
from privfl.privacy.channel.field import Field
from privfl.validation import Settings

X, Y = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 3
ONE_CORE = pf.Execution(device="cpu", engine="loop", workers=1)


@pytest.fixture(scope="module")
def task():
    return pf.Task.from_arrays(X, Y, partition=pf.IID(clients=4))


def refused(make):
    """The sentence that ``make`` is refused with; ``None`` if it is taken."""
    try:
        make()
    except PrivflError as refusal:
        sentence = str(refusal)
        assert "\n" not in sentence
        assert len(sentence) < 500
        return sentence
    return None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "digits"}, "task is 'digits'; give a Task"),
        ({"algorithm": "fedavg"}, "algorithm is 'fedavg'; give an object, such as FedAvg(…)"),
        ({"algorithm": pf.FedProx}, "algorithm is the class FedProx; give an object of it, FedProx(…)"),
        (
            {"privacy": pf.DPSGD(noise_multiplier=1.0)},
            "privacy is DPSGD(…); give Privacy(training=DPSGD(…))",
        ),
        ({"privacy": pf.Clip(1.0)}, "privacy is Clip(…); give Privacy(update=[Clip(…)])"),
        ({"privacy": pf.LaplaceSize(1.0, 100)}, "privacy is LaplaceSize(…); give Privacy(size=LaplaceSize(…))"),
        ({"training": 0.1}, "training is 0.1; give a LocalTraining or None"),
        ({"training": {"epochs": 2}}, "training is {'epochs': 2}; give a LocalTraining or None"),
        ({"cohort": 3}, "cohort is 3; give a Cohort or None"),
        ({"cohort": "poisson"}, "cohort is 'poisson'; give an object, such as PoissonCohort(…)"),
        ({"cohort": pf.FixedCohort(5)}, "the cohort's size is 5 of 4 clients; lower it, or take Everyone()"),
        ({"cohort": pf.Rotation(5)}, "the cohort's period is 5 for 4 clients, so that some rounds have nobody"),
        ({"availability": 0.5}, "availability is 0.5; give an Availability or None"),
        ({"execution": "cuda"}, "execution is 'cuda'; give an Execution or None"),
        ({"rounds": 2.0}, "rounds is 2.0; give a whole number"),
        ({"rounds": 0}, "rounds is 0; give a whole number of at least 1"),
        ({"seed": "7"}, "seed is '7'; give a whole number"),
        ({"record": "sever"}, "record is 'sever'; did you mean 'server'? Valid: "),
        ({"record": ["sever"]}, "record holds 'sever'; did you mean 'server'? Valid: 'server' or 'public'"),
        ({"callbacks": print}, "callbacks is the function print; give a list, such as [the function print]"),
        ({"out": 3}, "out is 3; give "),
        ({"resume": "yes"}, "resume is 'yes'; give True or False"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_with_the_mend(task, arguments, sentence):
    given = {"task": task, "algorithm": pf.FedAvg(), "rounds": 1, **arguments}
    assert (refused(lambda: pf.simulate(**given)) or "").startswith(sentence)


def test_mechanisms_are_told_their_place():
    assert (
        refused(lambda: pf.Privacy(update=pf.Clip(1.0)))
        == "Privacy's update is Clip(…); give a list, such as [Clip(…)]"
    )
    private = [pf.Clip(1.0), pf.DPSGD(noise_multiplier=1.0)]
    assert refused(lambda: pf.Privacy(update=private)).endswith("which has a place of its own; give it as training")
    assert refused(lambda: pf.Privacy(training=pf.Clip(1.0))).startswith("Privacy's training is Clip(…)")


def test_one_observer_may_be_named_alone(task):
    alone, listed = (pf.simulate(task, pf.FedAvg(), rounds=1, record=who).transcript for who in ("server", ["server"]))
    assert alone.observer == listed.observer == "server"


@dataclass(frozen=True)
class Keeper(pf.FedAvg):
    """Begins with what a client kept, which is nothing in the first round."""

    name: ClassVar[str] = "keeper"
    keeps: ClassVar[tuple[str, ...]] = ("control",)

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "control": client_state["control"]}


class Prepared(Keeper):
    def initial_client_state(self, client):
        return {"control": torch.zeros(2)}


class KeepsText(pf.FedAvg):
    keeps = "control"


class Nameless(pf.Algorithm):
    pass


class OneField(pf.FedAvg):
    def fields(self):
        return Field("update")


class Misspelt(pf.FedAvg):
    def finish(self, local, received, training):
        return {"updat": super().finish(local, received, training)["update"]}


class DeclaresMore(pf.FedAvg):
    def fields(self):
        return (Field("update"), Field("loss", shape=()))


class SendsMore(pf.FedAvg):
    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        return {**upload, "loss": upload["update"].sum()}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Keeper, "keeper's clients keep 'control' and begin with it, .* define initial_client_state"),
        (KeepsText, r"KeepsText's keeps is 'control'; give a tuple of names, such as \('control',\)"),
        (Nameless, "Nameless has no name; write name: ClassVar"),
        (OneField, r"OneField's fields\(\) returned .*; give a tuple of fields"),
        (Misspelt, r"which finish\(\) returns and fields\(\) does not declare, 'updat': did you mean 'update'\?"),
        (SendsMore, r"which finish\(\) returns and fields\(\) does not declare, 'loss'"),
        (DeclaresMore, r"finish\(\) returned the fields update and fields\(\) declares loss, update"),
    ],
)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_an_algorithm_that_contradicts_itself_is_refused_by_its_names(task, kind, sentence, engine):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        pf.simulate(task, kind(), rounds=1, execution=pf.Execution(device="cpu", engine=engine, workers=1))
    assert "\n" not in str(refusal.value)


def test_a_client_that_keeps_something_from_the_start_trains(task):
    assert set(pf.simulate(task, Prepared(), rounds=1, execution=ONE_CORE).client_state[0]) == {"control"}


ODD = (
    *(None, True, 0, -1, 3, 10**30, -(10**400), 0.5, -0.5, 1e308, math.nan, math.inf, -math.inf, 1j),
    *("", "each", b"x", [], [-1], [math.nan], [None], ["a"], (1, 2), ((1,),), {}, {"a": 1}, object(), int, slice(3)),
    *(np.float32(0.5), np.int64(2), np.float64("nan"), np.bool_(True), np.array(3.0), np.array([1.0, 2.0])),
    *(torch.tensor(2), torch.tensor([1.0, 2.0]), len, range(2), pf.FedAvg(), pf.FedAvg, pf.Clip(1.0)),
)
"""What somebody may give where something else is meant."""

GOOD = {
    **{"alpha": 0.5, "bound": 100, "clients": 4, "come_back": 0.5, "epsilon": 1.0, "fraction": 0.5, "go_offline": 0.1},
    **{"initial_norm": 1.0, "max_norm": 1.0, "name": "update", "noise_multiplier": 1.0, "period": 2, "rate": 0.1},
    **{
        "base": {},
        "parameter": "training.learning_rate",
        "probabilities": (0.5, 1.0),
        "probability": 0.5,
        "samples_per_round": 10,
        "size": 2,
        "statistic": "loss",
    },
}
"""Values for settings without a default."""
ONE_OF_TWO = {"DPSGD": {"noise_multiplier": 1.0}, "GivenSizes": {"sizes": (1, 2)}, "Tuning": {"values": (0.1, 1.0)}}
ONE_OF_TWO |= {name: {"clients": 3} for name in ("LabelSorted", "LogNormal")}
CONSTRUCTORS = {
    name: kind
    for name in sorted(pf.__all__)
    if inspect.isclass(kind := getattr(pf, name)) and issubclass(kind, Settings)
    if not inspect.isabstract(kind) and kind not in (pf.Algorithm, pf.Task, pf.Dataset)
}


def test_the_fuzz_below_reaches_what_users_construct():
    assert len(CONSTRUCTORS) > 75
    results = {
        "Assignment",
        "Ledger",
        "PrivateFederation",
        "Run",
        "Statement",
        "Transcript",
    }  # what a run gives; nobody sets these up
    others = {name for name in pf.__all__ if inspect.isclass(getattr(pf, name)) and name not in CONSTRUCTORS}
    others -= {name for name in others if issubclass(getattr(pf, name), Exception)}
    assert others == results | {"Algorithm", "Dataset", "Experiment", "MLflow", "Partition", "Task", "TensorBoard"}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_takes_a_value_or_refuses_it_in_one_sentence(name):
    kind = CONSTRUCTORS[name]
    parameters = inspect.signature(kind).parameters
    needed = {key: GOOD[key] for key, one in parameters.items() if one.default is one.empty}
    needed |= ONE_OF_TWO.get(name, {})
    kind(**needed)
    for key in parameters:
        taken = [value for value in ODD if refused(lambda: kind(**{**needed, key: value})) is None]  # noqa: B023
        assert len(taken) < len(ODD) / 2, f"{key} of {name} takes anything"
        for value in taken:
            made = getattr(kind(**{**needed, key: value}), key)
            assert not isinstance(made, np.generic | list), f"{key} of {name} keeps {type(made)}"
            assert not (isinstance(made, float) and math.isnan(made)), f"{key} of {name} keeps NaN"


def test_simulate_takes_an_argument_or_refuses_it_in_one_sentence(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taken = []
    for name in inspect.signature(pf.simulate).parameters:
        for value in ODD:
            if name == "settings" or (name == "rounds" and isinstance(value, int) and value > 3):
                continue  # it may be any dictionary, and takes as long as it says
            given = {"task": task, "algorithm": pf.FedAvg(), "rounds": 1, "execution": ONE_CORE, name: value}
            if refused(lambda: pf.simulate(**given)) is None:  # noqa: B023
                taken.append(name)
    assert len(taken) < 60


def test_arrays_and_their_settings_are_taken_or_refused_in_one_sentence(task):
    for make, given in (
        (pf.Task.from_arrays, {"inputs": X, "targets": Y, "partition": pf.IID(clients=4)}),
        (pf.load, {"partition": pf.IID(clients=4), "model": "logistic"}),
        (pf.Task, {item.name: getattr(task, item.name) for item in fields(task) if item.init}),
        (pf.Dataset, {"name": "n", "classes": 3, **{part + "inputs": torch.zeros(3, 2) for part in ("", "test_")}}
         | {part + "targets": torch.tensor([0, 1, 2]) for part in ("", "test_")}),
    ):  # fmt: skip
        make(**given)
        for key in inspect.signature(make).parameters:
            for value in ODD:
                refused(lambda: make(**{**given, key: value}))  # noqa: B023


def test_numbers_that_float32_cannot_hold_are_refused_before_they_overflow_in_a_step():
    for make in (
        lambda: pf.LocalTraining(learning_rate=1e308),
        lambda: pf.FedProx(mu=1e300),
        lambda: pf.DPSGD(noise_multiplier=(1.0, 1e39)),
    ):
        assert refused(make).endswith("give at most 3.4e+38 in size, the largest float32")
    assert pf.LocalTraining(learning_rate=3.4e38).learning_rate == 3.4e38


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("dpsgd", [None, pf.DPSGD(noise_multiplier=1.0)])
def test_a_batch_beyond_all_data_and_a_rate_that_decays_to_nothing_train(task, engine, dpsgd):
    training = pf.LocalTraining(batch_size=10**39, learning_rate_decay=1e-200)
    execution = pf.Execution(device="cpu", engine=engine, workers=1)
    run = pf.simulate(
        task,
        pf.FedAvg("uniform"),
        rounds=3,
        training=training,
        privacy=pf.Privacy(training=dpsgd),
        execution=execution,
    )
    assert len(run.metrics) == 3
    assert run.failure[:21] == ("" if dpsgd is None else "the model never moved")  # a sum over 10^39 is nothing


@pytest.mark.parametrize("out", ["a\0b", "file", "file/run", "n" * 300])
def test_a_folder_that_cannot_be_is_refused_before_training(task, tmp_path, out):
    (tmp_path / "file").write_text("taken")
    trained = []
    sentence = refused(
        lambda: pf.simulate(
            task, pf.FedAvg(), rounds=1, out=tmp_path / out, callbacks=[lambda *seen: trained.append(seen)]
        )
    )
    assert "choose another one" in sentence
    assert not trained


def test_paths_that_cannot_be_read_are_one_sentence_too(tmp_path):
    for path in ("a\0b", "n" * 5000, tmp_path):
        assert refused(lambda: pf.Experiment.from_toml(path)).endswith("give the path of an experiment file")  # noqa: B023
    for folder in ("a\0b", "n" * 5000):
        assert "cannot be used" in refused(lambda: pf.Experiment.of_run(folder))  # noqa: B023


LONG = "z" * 5000


@pytest.mark.parametrize(
    "settings",
    [
        {LONG: 1},
        {"rounds": LONG},
        {"rounds": [1] * 10_000},
        {"algorithm": {"name": LONG}},
        {"algorithm": [1] * 10_000},
        {"algorithm": {"name": "fedavg", LONG: 1}},
        {"privacy": {"noise_key": 10**4000}},
        {"model": {"name": f"module:{LONG}"}},
        {"device": "a\nb"},
    ],
)
def test_a_long_value_is_not_echoed_whole(settings):
    def start():
        experiment = pf.Experiment.from_dict({"partition": {"name": "iid", "clients": 3}, **settings})
        experiment.run()

    sentence = refused(start)
    assert "zzz" not in sentence or "…" in sentence or "..." in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize("device", ["meta", "mps", "vulkan", "cuda:99", "cpu:x"])
def test_devices_that_privfl_does_not_compute_on_are_refused(task, device):
    sentence = refused(lambda: pf.simulate(task, pf.FedAvg(), rounds=1, execution=pf.Execution(device=device)))
    assert "; use auto" in sentence


def test_tensors_that_numpy_does_not_know_are_taken_or_named():
    def arrays(inputs, targets=Y):
        return pf.Task.from_arrays(inputs, targets, partition=pf.IID(clients=4))

    exact = torch.from_numpy(X).bfloat16()
    assert torch.equal(arrays(exact).inputs, arrays(exact.float().numpy()).inputs)
    dense = torch.from_numpy(X)
    assert "inputs are of layout torch.sparse_coo; give plain numbers" in refused(lambda: arrays(dense.to_sparse()))
    assert "inputs are a meta tensor without values" in refused(lambda: arrays(dense.to("meta")))
    assert "inputs are quantised" in refused(lambda: arrays(torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)))
    masked = np.ma.masked_array(X, mask=X > 1)
    assert f"{(X > 1).sum()} values of inputs are masked" in refused(lambda: arrays(masked))
    assert "values of targets are masked" in refused(lambda: arrays(X, np.ma.masked_array(Y, mask=Y > 1)))
    assert arrays(np.ma.masked_array(X, mask=False)).inputs.shape[1:] == (5,)
    huge = np.where(np.arange(40) == 0, 2**64 - 1, Y.astype(np.uint64)).astype(np.uint64)
    assert "targets hold 18446744073709551615" in refused(lambda: arrays(X, huge))
    assert "targets go up to 1000000000000" in refused(lambda: arrays(X, np.where(np.arange(40) == 0, 10**12, Y)))
