"""Under one noise only the same message is sent twice: who resumes anything else is refused, or gets other noise.

The distinguisher is that of a server who sees both messages of a round that was repeated: under one noise their
difference is as short as two clipped sums; under two noises it is as long as the noise. With z = 100 and 330
parameters that is 500 times as long; that it falls below a fifth of this has a probability below 0.3 ** 330.
"""

import importlib
import json
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.errors import ConfigError, PrivflError
from privfl.files import read_json, write_json
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation import fingerprint as fingerprint_module
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.plan import RunSettings, prepare

ROWS, WIDTH, CLASSES = 40, 32, 10
RATE = 0.5
INPUTS = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
TARGETS = np.arange(ROWS) % CLASSES
OWN = """
import torch
import torch.nn.functional as F
from torch import nn

FACTOR = 1.0


def helper(inputs):
    return inputs * FACTOR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 10)

    def forward(self, inputs):
        return self.layer(helper(inputs))


def loss(network, inputs, targets):
    return F.cross_entropy(network(inputs), targets, reduction="none")
"""


class Killed(Exception):
    """What a machine that stops looks like from inside."""


def task(inputs=INPUTS, targets=TARGETS, **given):
    given = {"model": "logistic", "classes": CLASSES, **given}
    return pf.Task.from_arrays(inputs, targets, partition=pf.IID(2), test_fraction=0.2, **given)


def run(out, data, *, kill=None, resume=False, engine="loop", noise_multiplier=100.0, noise_key=None, **given):
    """The parameters after round 0, which anybody can subtract the known initial model from."""
    seen = []

    def watch(simulation, line):
        seen.append(simulation.server["parameters"].clone())
        if kill == line["round"]:
            raise Killed

    dpsgd = pf.DPSGD(noise_multiplier=noise_multiplier, sample_rate=0.5)
    arguments = {
        "rounds": 4,
        "training": pf.LocalTraining(learning_rate=RATE),
        "privacy": pf.Privacy(training=dpsgd, noise_key=noise_key),
        "execution": pf.Execution(engine=engine, workers=1, checkpoint_seconds=1e9, device="cpu"),
        **given,
    }
    algorithm = arguments.pop("algorithm", pf.FedAvg("uniform"))
    with suppress(Killed):
        pf.simulate(data, algorithm, out=out, resume=resume, callbacks=[watch], **arguments)
    return seen


def own(tmp_path, monkeypatch, text=OWN):
    """A module of the user's own, as Python imports it when the machine has started again."""
    (tmp_path / "own_net.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("own_net", None)
    importlib.invalidate_caches()
    return importlib.import_module("own_net")


def other_row():
    inputs = INPUTS.copy()
    inputs[7] = 5.0
    return task(inputs)


def other_label():
    targets = TARGETS.copy()
    targets[7] = (targets[7] + 1) % CLASSES
    return task(inputs=INPUTS, targets=targets)


def focal(network, inputs, targets):
    entropy = F.cross_entropy(network(inputs), targets, reduction="none")
    return (1 - torch.exp(-entropy)) ** 2 * entropy


CHANGES = {
    "one example": ("the inputs", other_row, {}),
    "one label": ("the labels", other_label, {}),
    "the preprocessing": ("the inputs", lambda: task(scale=0.5), {}),
    "the owners": ("which client holds which examples", lambda: task(seed=1), {}),
    "the loss": ("data.loss.name", lambda: task(loss=focal), {}),
    "z": ("privacy.training.noise_multiplier is 100.0 there and 200.0 here", task, {"noise_multiplier": 200.0}),
    "the algorithm": ("algorithm.name", task, {"algorithm": pf.FedProx("uniform", mu=1.0)}),
    "the learning rate": ("training.learning_rate", task, {"training": pf.LocalTraining(learning_rate=0.1)}),
    "the cohort": ("cohort.name", task, {"cohort": pf.FixedCohort(2)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_not_resumed_on_anything_else(tmp_path, change):
    told, data, given = CHANGES[change]
    run(tmp_path / "run", task(), kill=1)
    with pytest.raises(ConfigError, match="holds a run with other settings: ") as refused:
        run(tmp_path / "run", data(), resume=True, **given)
    assert told in str(refused.value)
    assert len(run(tmp_path / "run", task(), resume=True)) == 4


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("change", ["one example", "one label", "the loss", "the preprocessing", "z"])
def test_what_slips_through_the_comparison_gets_other_noise(tmp_path, monkeypatch, change, engine):
    _, data, given = CHANGES[change]
    apart = repeated(tmp_path / "apart", data(), given, engine)
    assert apart > 100 * CLIPPED

    monkeypatch.setattr(NoiseSource, "for_run", lambda source, fingerprint: source)  # as it was
    shared = repeated(tmp_path / "as it was", data(), {**given, "noise_multiplier": 100.0}, engine)
    assert shared <= CLIPPED


CLIPPED = 2 * RATE / 8
"""Two messages under one noise differ by at most two clipped sums, divided by the expected batch, in every client."""


def repeated(folder, data, given, engine):
    """How far the two messages of round 0 are apart once somebody has made the files say what is asked for now."""
    first = run(folder / "run", task(), kill=1, engine=engine)[0]
    run(folder / "other", data, kill=0, engine=engine, **given)
    for name in ("config.toml", "environment.json"):
        shutil.copy(folder / "other" / name, folder / "run" / name)
    record, others = (read_json(folder / name / "fingerprint.json") for name in ("run", "other"))
    write_json(folder / "run" / "fingerprint.json", {**record, "parts": others["parts"]})
    second = run(folder / "run", data, kill=0, resume=True, engine=engine, **given)[0]
    return float((first - second).norm())


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_the_same_run_sends_the_same_messages_again(tmp_path, engine):
    first = run(tmp_path / "run", task(), kill=2, engine=engine)
    second = run(tmp_path / "run", task(), resume=True, engine=engine)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=False))
    fresh = run(tmp_path / "fresh", task(), engine=engine)
    assert float((fresh[0] - first[0]).norm()) > 100 * CLIPPED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 1.0", "FACTOR = 2.0"),
        ("inputs * FACTOR", "inputs + FACTOR"),
        ("self.layer(helper(inputs))", "self.layer(helper(inputs)) * 2"),
        ('reduction="none")', 'reduction="none", label_smoothing=0.1)'),
    ],
)
def test_the_code_of_ones_own_model_and_loss_is_compared(tmp_path, monkeypatch, old, new):
    module = own(tmp_path, monkeypatch)
    run(tmp_path / "run", task(model=module.Net, loss=module.loss), kill=1)
    module = own(tmp_path, monkeypatch, OWN.replace(old, new))
    with pytest.raises(ConfigError, match=r"the code of own_net:(Net|loss)"):
        run(tmp_path / "run", task(model=module.Net, loss=module.loss), resume=True)
    module = own(tmp_path, monkeypatch, "# a comment changes nothing\n" + OWN)
    assert len(run(tmp_path / "run", task(model=module.Net, loss=module.loss), resume=True)) == 4


def test_data_of_the_catalog_whose_files_changed_are_others(tmp_path):
    loaded = pf.load("digits", partition=pf.IID(2), model="logistic")
    run(tmp_path / "run", loaded, kill=1)
    targets = loaded.targets.clone()
    targets[3] = (targets[3] + 1) % 10
    with pytest.raises(ConfigError, match="other settings: the labels;"):
        run(tmp_path / "run", replace(loaded, targets=targets).made_by(loaded.recipe), resume=True)


def test_data_that_were_written_to_behind_the_tasks_back_are_others(tmp_path):
    data = task()
    run(tmp_path / "run", data, kill=1)
    data.targets.numpy()[5] = (int(data.targets[5]) + 1) % CLASSES
    with pytest.raises(ConfigError, match="the labels"):
        run(tmp_path / "run", data, resume=True)


def test_a_memory_map_whose_file_changed_is_other_data(tmp_path):
    np.save(tmp_path / "x.npy", INPUTS)

    def mapped():
        return task(np.load(tmp_path / "x.npy", mmap_mode="r"))

    run(tmp_path / "run", mapped(), kill=1)
    changed = INPUTS.copy()
    changed[3, 3] += 1
    np.save(tmp_path / "x.npy", changed)
    with pytest.raises(ConfigError, match="the inputs"):
        run(tmp_path / "run", mapped(), resume=True)


def test_held_back_rows_are_compared(tmp_path):
    run(tmp_path / "run", task().with_local_tests(seed=0), kill=1)
    with pytest.raises(ConfigError, match="which examples clients hold back for tests"):
        run(tmp_path / "run", task().with_local_tests(seed=1), resume=True)


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("versions", lambda: {"torch": "2.99.0"}, r"torch \(.* there and 2.99.0 here\)"),
        ("shipped_code", lambda: "0" * 64, "privfl's own code"),
        ("_device", lambda device: "another", r"device \(.* there and another here\)"),
    ],
)
def test_another_library_or_machine_is_refused_where_there_is_noise(tmp_path, monkeypatch, name, changed, told):
    nothing = pf.Privacy()
    run(tmp_path / "private", task(), kill=1)
    run(tmp_path / "plain", task(), kill=1, privacy=nothing)
    run(tmp_path / "fixed", task(), kill=1, noise_key=3)
    whole = run(tmp_path / "whole", task())
    monkeypatch.setattr(fingerprint_module, name, changed)
    with pytest.raises(ConfigError, match=told):
        run(tmp_path / "private", task(), resume=True)
    assert len(run(tmp_path / "plain", task(), resume=True, privacy=nothing)) == 4
    assert len(run(tmp_path / "fixed", task(), resume=True, noise_key=3)) == 4
    assert run(tmp_path / "whole", task(), resume=True) == [] != whole


@pytest.mark.parametrize(("began", "resumed"), [(3, None), (None, 3), (3, 4)])
def test_a_fixed_key_stays_with_its_run(tmp_path, began, resumed):
    run(tmp_path / "run", task(), kill=1, noise_key=began)
    with pytest.raises(ConfigError, match=r"privacy\.noise_key is"):
        run(tmp_path / "run", task(), resume=True, noise_key=resumed)
    config = tmp_path / "run" / "config.toml"  # a file that was made to say so does not help
    run(tmp_path / "other", task(), kill=0, noise_key=resumed)
    for name in ("config.toml", "environment.json"):
        shutil.copy(tmp_path / "other" / name, config.with_name(name))
    with pytest.raises(ConfigError, match="noise_key"):
        run(tmp_path / "run", task(), resume=True, noise_key=resumed)


def test_a_lost_key_ends_a_run_and_a_finished_one_needs_none(tmp_path):
    run(tmp_path / "run", task(), kill=1)
    (tmp_path / "run" / "noise.key").unlink()
    with pytest.raises(PrivflError, match=r"noise\.key is gone"):
        run(tmp_path / "run", task(), resume=True)
    run(tmp_path / "whole", task())
    assert not (tmp_path / "whole" / "noise.key").exists()
    before = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.json*")}
    assert run(tmp_path / "whole", task(), resume=True) == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.json*")} == before


def test_a_run_that_its_budget_stopped_sends_nothing_when_it_is_resumed(tmp_path):
    size = pf.LaplaceSize(epsilon=10.0, bound=40, lower=5, refresh="every_round")
    dpsgd = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
    privacy = pf.Privacy(training=dpsgd, size=size, max_size_error=1e3, budget=pf.Budget(6.0))
    given = {"algorithm": pf.FedSampling(20), "privacy": privacy, "rounds": 20}
    sent = run(tmp_path / "run", task(), **given)
    assert 0 < len(sent) < 20
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}
    assert run(tmp_path / "run", task(), resume=True, **given) == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before


def test_what_cannot_be_told_apart_is_not_gone_on_with(tmp_path):
    class Opaque:
        __slots__ = ()

        def __reduce_ex__(self, protocol):
            raise TypeError("cannot be taken apart")

    opaque = Opaque()

    def loss(network, inputs, targets):
        if opaque is None:
            raise AssertionError
        return F.cross_entropy(network(inputs), targets, reduction="none")

    run(tmp_path / "run", task(loss=loss), kill=1)
    with pytest.raises(ConfigError, match=r"the code of .*loss \(because it holds .*Opaque\)"):
        run(tmp_path / "run", task(loss=loss), resume=True)


COUNTS = (number for number in range(3))


def counting(network, inputs, targets):
    assert COUNTS is not None
    return focal(network, inputs, targets)


class Counting(pf.FedAvg):
    """Reaches what nothing can look into, as the loss does."""

    name = "counting"

    def begin_round(self, server, number):
        assert COUNTS is not None
        return server


WORDS = (
    r"/run cannot be resumed if it is interrupted: the code of \S+counting holds builtins\.generator and the code of "
    r"\S*Counting holds builtins\.generator, and nobody can tell whether another process would have the same; create it"
)


def test_a_run_that_cannot_be_resumed_says_so_once_at_its_start_because_of_what_and_why(tmp_path, caplog):
    given = {"algorithm": Counting("uniform"), "kill": 0}
    run(tmp_path / "run", task(loss=counting), **given)
    assert [bool(re.search(WORDS, record.getMessage())) for record in caplog.records] == [True]
    with pytest.raises(ConfigError, match=r"because it holds builtins\.generator"):
        run(tmp_path / "run", task(loss=counting), resume=True, **given)
    told = len(caplog.records)
    run(None, task(loss=counting), **given)
    run(tmp_path / "fixed", task(loss=counting), noise_key=1, **given)  # noise does not follow from what it is
    run(tmp_path / "plain", task(loss=focal), kill=0)
    assert [record for record in caplog.records[told:] if "cannot be resumed" in record.getMessage()] == []


def test_every_setting_of_the_house_is_in_the_fingerprint_unless_it_decides_no_message():
    fields = {"rounds", "seed", "evaluate_every", "device", "engine", "precision", "workers", "checkpoint_seconds"}
    fields |= {"max_upload_norm", "address", "deterministic", "inside", "gpus"}
    assert {*vars(pf.Schedule()), *vars(pf.Execution())} == fields
    left_out = {*fingerprint_module.INDIFFERENT, *fingerprint_module.NO_MESSAGE}
    assert fields - left_out == {"rounds", "seed", "precision", "deterministic", "max_upload_norm"}


@pytest.mark.parametrize(
    ("given", "depends"),
    [
        ({"algorithm": pf.FedAvg("uniform")}, False),
        ({"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))}, False),
        ({"algorithm": pf.SuPerFed()}, True),
        ({"algorithm": pf.FedAvg("uniform"), "privacy": pf.Privacy(training=pf.DPSGD(target_epsilon=5.0))}, True),
    ],
)
def test_the_number_of_rounds_belongs_to_a_run_where_a_message_may_depend_on_it(given, depends):
    def parts(rounds):
        settings = {
            "privacy": pf.Privacy(),
            "cohort": pf.Everyone(),
            "availability": pf.Always(),
            "record": (),
            **given,
        }
        schedule, execution = pf.Schedule(rounds), pf.Execution(device="cpu")
        asked = RunSettings(
            task=task(), schedule=schedule, training=pf.LocalTraining(), execution=execution, **settings
        )
        plan = prepare(asked)
        return Fingerprint.of(asked, plan, fresh=False).parts["schedule"]

    assert (parts(4) != parts(8)) == depends


def test_two_parts_that_trade_their_hashes_make_another_digest():
    one, other = Fingerprint({"inputs": "a", "targets": "b"}, {}), Fingerprint({"inputs": "b", "targets": "a"}, {})
    assert one.digest != other.digest
    assert one.digest == Fingerprint({"targets": "b", "inputs": "a"}, {}).digest


def test_pretrained_weights_from_a_file_belong_to_the_run(tmp_path):
    torch.save(torch.zeros(CLASSES, WIDTH), tmp_path / "weights.pt")

    def pretrained():
        layer = nn.Linear(WIDTH, CLASSES)
        layer.weight.data.copy_(torch.load(tmp_path / "weights.pt"))
        return layer

    run(tmp_path / "run", task(model=pretrained), kill=1)
    torch.save(torch.ones(CLASSES, WIDTH), tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="the initial model"):
        run(tmp_path / "run", task(model=pretrained), resume=True)


def test_another_number_of_workers_changes_no_bit_of_what_is_sent_again(tmp_path):
    given = {"engine": "vectorised"}
    first = run(tmp_path / "run", task(), kill=1, **given)
    record = json.loads((tmp_path / "run" / "engine.json").read_text())
    assert (record["engine"], record["workers"]) == ("vectorised", 1)
    more = pf.Execution(engine="auto", workers=2, checkpoint_seconds=1e9, device="cpu")
    second = run(tmp_path / "run", task(), resume=True, execution=more)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=False))
    assert json.loads((tmp_path / "run" / "engine.json").read_text()) == record


def test_what_numpy_writes_to_the_data_between_two_runs_belongs_to_the_second(tmp_path):
    data = task()
    run(tmp_path / "before", data)
    data.inputs.numpy()[:] = 0
    run(tmp_path / "run", data, kill=1)
    with pytest.raises(ConfigError, match="the inputs"):
        run(tmp_path / "run", task(), resume=True)
