"""What a round may claim, and what would make it claim too much: refused, charged or mended."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.algorithms.base import Survey
from privfl.errors import ConfigError, PrivacyError
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.log import BARE_SIZE, BARE_TOTAL, DoorLog
from tests.algorithms.contracts import SIZES, TRAINING, LossOnly, Voiced, one_hot, results
from tests.algorithms.federation import layered_task


@pytest.fixture(scope="module")
def task():
    return layered_task(SIZES)


@dataclass(frozen=True)
class Wide(pf.FedAvg):
    """Uploads something that is no parameter vector, and one client's is not finite."""

    name: ClassVar[str] = "wide"
    weighting: str = "uniform"

    def fields(self):
        return (Field("update", shape=(2, 3)),)

    def finish(self, local, received, training):
        return {"update": (local["parameters"][:6] - received["parameters"][:6]).view(2, 3) * torch.nan}

    def aggregate(self, server, total, round, training):
        return {**server, "sum": total["update"]}


def test_a_broken_upload_of_any_shape_becomes_noise_where_noise_is_added_at_the_client(task):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0, at="client")], noise_key=1)
    run = pf.simulate(task, Wide(), rounds=1, privacy=privacy)
    assert run.server["sum"].shape == (2, 3)
    assert bool(run.server["sum"].isfinite().all())


@dataclass(frozen=True)
class Whisper(Survey):
    """Keeps an exact class histogram and sends nothing, or a randomised number."""

    name: ClassVar[str] = "whisper"
    keeps: ClassVar[tuple[str, ...]] = ("seen",)
    statistics: ClassVar[tuple[str, ...]] = ("counts",)
    report: bool = False

    def fields(self):
        return (Field("report", "each", (), epsilon=1.0),) if self.report else ()

    def initial_client_state(self, client):
        return {"seen": torch.zeros(10, dtype=torch.float64)}

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "seen": client_state["seen"]}

    def prepare(self, local, received, everything, client, training):
        local["seen"] += client.total(one_hot, received["parameters"], everything, name="counts")

    def finish(self, local, received, training):
        return {"report": local["seen"][0] * 0 + 0.5} if self.report else {}

    def aggregate(self, server, total, round, training):
        return server


@dataclass(frozen=True)
class Loud(pf.FedAvg):
    """Uploads what its survey kept."""

    name: ClassVar[str] = "loud"
    weighting: str = "uniform"
    report: bool = False

    def survey(self):
        return Whisper(self.report)

    def initial_client_state(self, client):
        return {"seen": torch.zeros(10, dtype=torch.float64)}

    def fields(self):
        return (Field("update"), Field("seen", shape=(10,)))

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "seen": client_state["seen"]}

    def finish(self, local, received, training):
        return {**super().finish(local, received, training), "seen": local["seen"]}


PRIVATE = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.2)


@pytest.mark.parametrize("report", [False, True])
def test_what_a_survey_keeps_for_a_later_upload_is_charged_when_it_passes_the_door(task, report):
    run = pf.simulate(task, Loud(report=report), rounds=1, privacy=pf.Privacy(training=PRIVATE))
    assert run.statement.cell("sample", "server").epsilon == np.inf
    assert BARE_TOTAL in run.statement.to_json()


def test_reading_how_many_rows_there_are_is_noted_as_the_size(task):
    @dataclass(frozen=True)
    class Counting(pf.FedAvg):
        name: ClassVar[str] = "counting"

        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, client, training)
            local["parameters"].add_(batch.count * 1e-9)

    for chunk in (None, 4):
        assert BARE_SIZE in results(task, Counting("uniform"), chunk=chunk)[0].log.bare
    with pytest.raises(PrivacyError, match="counting took other values through the door"):
        pf.simulate(task, Counting("uniform"), rounds=1, privacy=pf.Privacy(training=PRIVATE))


def test_noise_on_a_sum_is_refused_for_weights_of_the_server_and_for_answers_from_each(task):
    @dataclass(frozen=True)
    class Weighed(pf.FedSampling):
        name: ClassVar[str] = "weighed"

        def weights(self):
            return "server"

    central = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
    with pytest.raises(ConfigError, match="requires uniform weights"):
        pf.simulate(task, Weighed(20), rounds=1, privacy=pf.Privacy(training=central, size=pf.LaplaceSize(3.0, 30)))

    @dataclass(frozen=True)
    class Apiece(pf.FedAvg):
        name: ClassVar[str] = "apiece"

        def fields(self):
            return (Field("update", combine="each"),)

    noise = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    with pytest.raises(ConfigError, match="the server needs every client's 'update', and noise is calibrated"):
        pf.simulate(task, Apiece("uniform"), rounds=1, privacy=noise)


def test_a_chosen_key_of_noisy_totals_and_of_reports_forbids_release(task):
    runs = [
        pf.simulate(task, pf.ReBaFL(), rounds=1, privacy=pf.Privacy(statistics=(LABELS,), noise_key=1)),
        pf.simulate(task, Voiced(epsilon=1.0), rounds=1, privacy=pf.Privacy(noise_key=1)),
    ]
    for run in runs:
        assert json.loads(run.statement.to_json())["reproducible_noise"] is True


LABELS = pf.NoisyTotal("label_prior", 1.0, 4.0)


def test_a_target_counts_randomised_reports_and_refuses_bare_totals(task):
    training = pf.DPSGD(target_epsilon=6.0, sample_rate=0.2)
    run = pf.simulate(task, Voiced(epsilon=1.0), rounds=3, privacy=pf.Privacy(training=training))
    assert 5.5 < run.statement.cell("sample", "server").epsilon <= 6.0
    with pytest.raises(ConfigError, match=r"target_epsilon cannot be reached: sums over samples .* \(loss\)"):
        pf.simulate(task, pf.AAggFFD(), rounds=2, privacy=pf.Privacy(training=training))


def test_a_total_of_one_number_per_row_can_be_noisy(task):
    for chunk in (None, 4):
        found = results(task, LossOnly(), chunk=chunk, statistics=(pf.NoisyTotal("loss", 1.0, 1.0),))
        assert all(result.log.noisy == Counter({GaussianDpEvent(1.0): 1}) for result in found.values())


@pytest.mark.parametrize("weight", [torch.nan, -1.0])
def test_weights_that_are_none_stop_the_round_before_it_is_spoilt(task, weight):
    @dataclass(frozen=True)
    class Odd(pf.FedAvg):
        name: ClassVar[str] = "odd"

        def weights(self):
            return "server"

        def server_weights(self, server, clients):
            return torch.full((len(clients),), weight)

    with pytest.raises(ConfigError, match="odd decided the weights"):
        pf.simulate(task, Odd(), rounds=1)


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_second_gradient_on_a_private_batch_is_refused_at_the_door(task, chunk):
    @dataclass(frozen=True)
    class Twice(pf.FedAvg):
        name: ClassVar[str] = "twice"

        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, client, training)
            super().step(local, received, batch, client, training)

    with pytest.raises(ConfigError, match="DP-SGD refuses a second gradient on one batch"):
        results(task, Twice("uniform"), dpsgd=PRIVATE, chunk=chunk)


def test_an_upload_may_be_the_parameters_themselves_whatever_the_number_of_workers(task):
    @dataclass(frozen=True)
    class Whole(pf.FedAvg):
        name: ClassVar[str] = "whole"

        def finish(self, local, received, training):
            return {"update": local["parameters"]}

        def aggregate(self, server, total, round, training):
            return {**server, "parameters": total["update"] / round.weight}

    runs = [
        pf.simulate(task, Whole("uniform"), rounds=2, execution=pf.Execution(workers=workers, engine="loop"))
        for workers in (1, 2, 4)
    ]
    assert all(torch.equal(runs[0].parameters, run.parameters) for run in runs[1:])


def test_tensors_may_be_swapped_in_a_step_and_kept_ones_changed_in_place(task):
    @dataclass(frozen=True)
    class Swap(pf.FedAvg):
        name: ClassVar[str] = "swap"
        keeps: ClassVar[tuple[str, ...]] = ("a", "b")

        def initial_client_state(self, client):
            return {"a": torch.ones(3), "b": 2 * torch.ones(3)}

        def begin(self, received, client_state, training):
            return {**super().begin(received, client_state, training), **client_state}

        def step(self, local, received, batch, client, training):
            local["a"], local["b"] = local["b"], local["a"]

    odd = replace(TRAINING, steps=3)
    for chunk in (None, 4):
        found = results(task, Swap("uniform"), chunk=chunk, training=odd)
        assert all(torch.equal(result.client_state["a"], 2 * torch.ones(3)) for result in found.values())
        assert all(torch.equal(result.client_state["b"], torch.ones(3)) for result in found.values())


def test_a_number_of_the_servers_state_that_is_not_finite_does_not_end_a_run(task, tmp_path):
    @dataclass(frozen=True)
    class Silent(pf.FedAvg):
        name: ClassVar[str] = "silent"

        def server_metrics(self, server):
            return {"regret": float("inf"), "q": 1.0}

    line = pf.simulate(task, Silent(), rounds=1, out=tmp_path / "run").metrics[0]
    assert (line["regret"], line["q"]) == (None, 1.0)


def test_state_that_the_server_dropped_stays_dropped_when_a_run_is_resumed(task, tmp_path):
    @dataclass(frozen=True)
    class Once(pf.FedAvg):
        name: ClassVar[str] = "once"

        def start(self, parameters):
            return {**super().start(parameters), "first/only": torch.ones(())}

        def aggregate(self, server, total, round, training):
            after = super().aggregate(server, total, round, training)
            return {name: value for name, value in after.items() if name != "first/only" or round.number == 0}

    def stop(simulation, line):
        if stopping and line["round"] == 1:
            raise KeyboardInterrupt

    for stopping, resume in ((True, False), (False, True)):
        try:
            run = pf.simulate(
                task,
                Once(),
                rounds=3,
                out=tmp_path,
                resume=resume,
                callbacks=[stop],
                execution=pf.Execution(checkpoint_seconds=0.0),
            )
        except KeyboardInterrupt:
            assert stopping
    assert set(run.server) == {"parameters"}


def test_the_cohort_is_those_who_were_asked_also_after_a_survey_lost_somebody(task):
    asked = []

    @dataclass(frozen=True)
    class Counted(Voiced):
        name: ClassVar[str] = "counted"

        def aggregate(self, server, total, round, training):
            asked.append((round.cohort, len(round.members)))
            return super().aggregate(server, total, round, training)

    broken = task.inputs.clone()
    broken[task.clients[2]] = torch.nan
    pf.simulate(replace(task, inputs=broken), Counted(), rounds=1)
    assert asked == [(4, 3)]


def test_a_task_with_other_local_tests_is_another_task(task):
    held = task.with_local_tests(pf.LocalTests(0.3))
    union = task.with_local_tests(pf.LocalTests(0.3, global_test="union"))
    assert held.describe() != union.describe() != task.describe()
    with pytest.raises(ConfigError, match="clients hold examples back already"):
        held.with_local_tests()


def test_whoever_holds_the_pooled_data_learns_nothing_less_from_a_randomised_report():
    channel = RoundChannel.bare((Field("report", "each", (), epsilon=1.0),))
    costs = [cell for release, _ in channel.releases(DoorLog(), server_holds_data=True) for cell in release.costs]
    assert {cell: cost.event is None for cell, cost in costs} == {
        ("sample", "server"): True,
        ("client", "server"): True,
        ("sample", "public"): False,
        ("client", "public"): False,
    }
