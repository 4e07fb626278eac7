"""An attack sees what its observer sees, and of messages the fields that it says it reads."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary
from attacks.observations.declared import Declared
from attacks.sizes.inference import SizeGuess, judge_sizes
from privfl.errors import ConfigError

INPUTS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
AUXILIARY = Auxiliary(truth={"sizes": torch.tensor([10] * 4)})


@pytest.fixture(scope="module")
def run():
    task = pf.Task.from_arrays(INPUTS, np.arange(40) % 2, partition=pf.IID(clients=4), model="logistic")
    return pf.simulate(task, pf.Scaffold(), rounds=2, record=True, execution=pf.Execution(workers=1))


@dataclass(frozen=True)
class Reader(Attack):
    name: ClassVar[str] = "reader"
    observer: ClassVar[str] = "server"
    needs: ClassVar[Needs] = Needs(("update",), truth=("sizes",))
    field: str = "update"

    def guess(self, seen, auxiliary):
        return SizeGuess({c: float(u[self.field].norm()) for c, u in seen[-1].uploads.items()}, 10.0)

    def judge(self, guess, auxiliary, seconds):
        return judge_sizes(self, guess, auxiliary, seconds)


class Public(Reader):
    observer: ClassVar[str] = "public"


def test_an_attack_of_the_public_sees_no_message_whoever_saw_the_run(run):
    assert run.transcript.observer == "server"
    for seen in (run, run.transcript):
        with pytest.raises(ConfigError, match="the public sees no messages"):
            Public().run(seen, AUXILIARY)


def test_an_attack_reads_the_fields_that_it_names_and_no_other(run):
    assert set(run.transcript[1].uploads[0]) == {"update", "control"}
    assert Reader().run(run, AUXILIARY).attack == "reader"
    with pytest.raises(ConfigError, match=r"reader reads 'control', which its needs do not name; add it to Needs\("):
        Reader(field="control").run(run, AUXILIARY)


def test_a_field_that_nobody_sent_is_not_there(run):
    seen = Declared(run.transcript, ("update", "counts"), "reader")
    with pytest.raises(KeyError):
        seen[0].uploads[0]["counts"]
    assert "control" not in seen[0].uploads[0]


def test_all_else_is_as_it_was_seen(run):
    whole, seen = run.transcript, Declared(run.transcript, ("update",), "reader")
    assert (len(seen), seen.observer, seen.facts) == (2, "server", whole.facts)
    assert [one.number for one in seen[:]] == [one.number for one in seen] == [0, 1]
    for one, other in zip(seen, whole, strict=True):
        assert torch.equal(one.released, other.released)
        assert one.sizes == other.sizes
        assert one.broadcast.keys() == other.broadcast.keys()
        assert one.training.members == other.training.members
        assert torch.equal(one.uploads[2]["update"], other.uploads[2]["update"])
        assert one.total.keys() == other.total.keys() & {"update"}
    assert torch.equal(seen.before_public()[1].released, whole[1].released)
    assert type(seen.network()) is type(whole.network())


def test_of_sums_the_same_fields_are_seen():
    task = pf.Task.from_arrays(INPUTS, np.arange(40) % 2, partition=pf.IID(clients=4), model="logistic")
    privacy = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    run = pf.simulate(task, pf.Scaffold(weighting="uniform"), rounds=1, privacy=privacy, record=True)
    seen = Declared(run.transcript, ("control",), "reader")[0]
    assert seen.training.uploads is None
    assert set(seen.total) == {"control"}
    with pytest.raises(ConfigError, match="reads 'update'"):
        seen.total["update"]
