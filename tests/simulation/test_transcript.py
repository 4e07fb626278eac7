"""A transcript is what an observer saw: all of it, nothing more, the same after an interruption."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.aggregation import CohortSums
from privfl.engine.workspace import Phase
from privfl.experiment import Experiment
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.simulation.recorder import Recorder
from privfl.simulation.simulation import simulate


def digits(**options) -> pf.Task:
    return pf.load(
        "digits",
        partition=pf.Dirichlet(clients=5, alpha=0.5),
        model="two-nn",
        model_options={"hidden": [12]},
        **options,
    )


def record(task: pf.Task | None = None, algorithm=None, rounds: int = 3, **options):
    given = {
        "record": True,
        "execution": pf.Execution(engine="loop", workers=1),
        "training": pf.LocalTraining(steps=3),
        **options,
    }
    return simulate(task or digits(), algorithm or pf.FedAvg(), rounds=rounds, **given)


def files(out) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "transcript").iterdir())}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    out = tmp_path_factory.mktemp("plain")
    run = record(out=out, cohort=pf.FixedCohort(4), availability=pf.Bernoulli(0.8))
    return out, run


def test_the_messages_of_a_round_give_its_released_model(plain):
    _, run = plain
    for seen in run.transcript:
        weight = dict(zip(seen.training.asked, seen.training.weights, strict=True))
        step = sum(weight[client] * upload["update"] for client, upload in seen.uploads.items())
        expected = seen.broadcast["parameters"] + step / sum(weight[client] for client in seen.training.members)
        assert torch.allclose(expected, seen.released, atol=1e-6)
        assert torch.allclose(step, seen.total["update"], atol=1e-4)
    following = [*(seen.broadcast["parameters"] for seen in run.transcript[1:]), run.parameters]
    assert all(torch.equal(a.released, b) for a, b in zip(run.transcript, following, strict=True))


def test_a_folder_holds_the_same_as_memory(plain):
    out, run = plain
    memory = record(cohort=pf.FixedCohort(4), availability=pf.Bernoulli(0.8)).transcript
    loaded = pf.Transcript.load(out)
    assert len(memory) == len(loaded) == len(run.transcript) == 3
    assert memory.facts == loaded.facts
    for one, other in zip(memory, loaded, strict=True):
        assert one.training.members == other.training.members
        assert one.training.weights == other.training.weights
        assert one.sizes == other.sizes
        assert torch.equal(one.released, other.released)
        for client in one.uploads:
            assert torch.equal(one.uploads[client]["update"], other.uploads[client]["update"])


def test_an_interrupted_run_ends_with_the_same_transcript(plain, tmp_path):
    """The run dies after its second round and before a checkpoint: both rounds on disk are written anew."""
    out, _ = plain

    def die(simulation, line) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    options = {"cohort": pf.FixedCohort(4), "availability": pf.Bernoulli(0.8), "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        record(callbacks=[die], execution=pf.Execution(checkpoint_seconds=100.0), **options)
    assert len(files(tmp_path)) == 3
    (tmp_path / "transcript" / "round-000001.npz").write_bytes(b"half a round")
    run = record(resume=True, **options)
    assert files(tmp_path) == files(out)
    assert len(run.transcript) == 3


def test_a_resumed_run_keeps_the_rounds_before_its_checkpoint(plain, tmp_path):
    out, _ = plain

    def die(simulation, line) -> None:
        raise KeyboardInterrupt

    options = {"cohort": pf.FixedCohort(4), "availability": pf.Bernoulli(0.8), "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        record(callbacks=[die], execution=pf.Execution(checkpoint_seconds=0.0), **options)
    first = (tmp_path / "transcript" / "round-000000.npz").stat().st_mtime_ns
    record(resume=True, **options)
    assert files(tmp_path) == files(out)
    assert (tmp_path / "transcript" / "round-000000.npz").stat().st_mtime_ns == first


def test_the_public_sees_released_models_and_public_facts_alone(plain, tmp_path):
    out, run = plain
    for public in (pf.Transcript.load(out, "public"), run.transcript.before_public()):
        for mine, full in zip(public, run.transcript, strict=True):
            assert torch.equal(mine.released, full.released)
            assert mine.exchanges == ()
            assert mine.sizes == {}
            with pytest.raises(pf.ConfigError, match="the public sees no messages"):
                _ = mine.uploads
    record(record=("public",), rounds=1, out=tmp_path)
    with np.load(tmp_path / "transcript" / "round-000000.npz") as archive:
        assert set(archive.files) == {"meta", "digest", "released"}
    with pytest.raises(pf.ConfigError, match="holds what public saw, not 'server'"):
        pf.Transcript.load(tmp_path)


def test_under_secure_aggregation_of_sizes_the_server_knows_their_sum_alone():
    privacy = pf.Privacy(
        update=(pf.SecureSum(),),
        size=pf.LaplaceSize(epsilon=3.0, bound=400, lower=50),
        max_size_error=10.0,
        noise_key=3,
    )
    seen = record(privacy=privacy, rounds=1).transcript[0]
    plain = record(rounds=1).transcript[0]
    assert seen.training.uploads is None
    assert set(seen.training.asked) == set(range(5))
    mean = seen.total["update"] / seen.training.weight
    assert torch.allclose(seen.released, seen.broadcast["parameters"] + mean, atol=1e-5)
    assert plain.training.weight == sum(plain.training.weights)


def test_nothing_that_a_transcript_refers_to_holds_clients():
    """Every object that can be reached from a transcript in memory: no task, no tensor of the data."""
    task = digits()
    run = record(task, rounds=1)
    data = {task.inputs.untyped_storage().data_ptr(), task.targets.untyped_storage().data_ptr()}
    waiting, met = [run.transcript], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in met or isinstance(thing, type | type(pytest) | type(digits)):
            continue
        met.add(id(thing))
        assert not isinstance(thing, pf.Task)
        if isinstance(thing, torch.Tensor):
            assert thing.untyped_storage().data_ptr() not in data
            continue
        waiting += gc.get_referents(thing)
    assert len(met) > 50


def test_uploads_are_recorded_after_the_clients_side_of_the_channel():
    clipped = record(algorithm=pf.FedAvg(weighting="uniform"), privacy=pf.Privacy(update=(pf.Clip(0.01),)), rounds=1)
    norms = [float(upload["update"].norm()) for upload in clipped.transcript[0].uploads.values()]
    assert max(norms) <= 0.01
    assert min(norms) > 0.0099


def test_only_sums_are_seen_where_nothing_else_is_handed_over(plain):
    """What secure aggregation does: the uploads do not pass the recorder."""
    _, run = plain
    task = digits()
    recorder = Recorder(("server",), run.transcript.facts, None, 0, task)
    phase = Phase(pf.FedAvg(), RoundChannel.bare((Field("update"),)))
    recorder.exchanged(
        phase, {"parameters": torch.zeros(3)}, {0: 1.0, 1: 1.0}, CohortSums({"update": torch.ones(3)}, [0, 1])
    )
    recorder.close(0, lambda: torch.zeros(3), {})
    seen = recorder.transcript()[0]
    assert seen.total["update"].tolist() == [1, 1, 1]
    assert seen.training.members == (0, 1)
    with pytest.raises(pf.ConfigError, match="only sums were seen"):
        _ = seen.uploads


@pytest.mark.parametrize("refresh", ["once", "every_round"])
def test_sizes_are_recorded_as_they_were_answered_when_they_were_answered(refresh):
    size = pf.LaplaceSize(epsilon=3.0, bound=400, lower=50, refresh=refresh)
    privacy = pf.Privacy(size=size, noise_key=3, max_size_error=10.0)
    seen = record(privacy=privacy, rounds=3).transcript
    assert all(set(one.sizes) == (set() if refresh == "once" and one.number else set(range(5))) for one in seen)
    if refresh == "every_round":
        assert len({tuple(one.sizes.values()) for one in seen}) == 3
    assert max(seen[0].sizes.values()) != max(digits().clients.sizes)
    assert seen.facts.privacy["noise_key"] is None, "who knows the key can subtract the noise"
    assert record(rounds=2).transcript[0].sizes == dict(enumerate(digits().clients.sizes.tolist()))


def test_a_survey_is_an_exchange_of_its_own():
    seen = record(algorithm=pf.AAggFFD(), rounds=1).transcript[0]
    assert [exchange.label for exchange in seen.exchanges] == ["survey", ""]
    assert seen.exchanges[0].uploads
    assert seen.training is seen.exchanges[1]


def test_what_nothing_sent_derives_from_leaves_the_transcript_bit_identical(plain, tmp_path):
    """Another test set, and other data of the client that is never asked."""
    task = digits()
    quiet = 4
    before = record(task, rounds=2, cohort=pf.FixedCohort(2), out=tmp_path / "before", algorithm=pf.FedAvg("uniform"))
    asked = {client for seen in before.transcript for client in seen.training.asked}
    quiet = min(set(range(5)) - asked)
    inputs = task.inputs.clone()
    inputs[task.clients[quiet]] = torch.rand(len(task.clients[quiet]), *inputs.shape[1:])
    object.__setattr__(task, "inputs", inputs)
    object.__setattr__(task, "test_inputs", torch.rand_like(task.test_inputs))
    record(task, rounds=2, cohort=pf.FixedCohort(2), out=tmp_path / "after", algorithm=pf.FedAvg("uniform"))
    assert files(tmp_path / "before") == files(tmp_path / "after")


def test_no_row_of_a_client_is_in_the_files(plain):
    out, _ = plain
    task = digits()
    content = b"".join(files(out).values())
    rows = task.inputs[task.clients.rows].numpy()
    assert all(row.tobytes() not in content for row in rows)
    assert rows[0].tobytes() in b"..." + rows[:2].tobytes(), "the search finds a row where there is one"


def test_the_network_is_rebuilt_from_the_public_facts(plain):
    out, run = plain
    loaded = pf.Transcript.load(out)
    task = digits()
    network = loaded.network(run.parameters)
    with torch.no_grad():
        accuracy = float((network(task.test_inputs).argmax(1) == task.test_targets).double().mean())
    assert accuracy == pytest.approx(run.summary["test_accuracy"], abs=1e-6)
    assert loaded.facts.algorithm["name"] == "fedavg"
    assert loaded.facts.training["steps"] == 3


def test_a_network_of_the_users_own_needs_its_factory(tmp_path):
    def own() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    generator = torch.Generator().manual_seed(0)
    arrays = torch.rand(60, 1, 8, 8, generator=generator), torch.arange(60) % 10
    task = pf.Task.from_arrays(*arrays, partition=pf.IID(clients=3), model=own)
    run = record(task, rounds=1, out=tmp_path)
    assert run.transcript.network(run.parameters)[1].weight.shape == (10, 64)
    with pytest.raises(pf.ConfigError, match="factory"):
        pf.Transcript.load(tmp_path).network()
    assert pf.Transcript.load(tmp_path, factory=lambda seed: own()).network()[1].weight.shape == (10, 64)


def test_what_cannot_be_read_or_recorded_is_said(tmp_path, plain):
    out, _ = plain
    with pytest.raises(pf.ConfigError, match=r"no transcript; .*`privfl run FILE --out FOLDER --set record=true`"):
        pf.Transcript.load(tmp_path)
    with pytest.raises(pf.ConfigError, match="neighbour"):
        pf.Transcript.load(out, "neighbour")
    with pytest.raises(pf.ConfigError, match="nobody"):
        record(record=("nobody",))
    folder = tmp_path / "transcript"
    folder.mkdir()
    (folder / "facts.json").write_bytes((out / "transcript" / "facts.json").read_bytes())
    (folder / "round-000000.npz").write_bytes(b"no archive")
    with pytest.raises(pf.DataError, match=r"round-000000\.npz"):
        _ = pf.Transcript.load(tmp_path)[0]
    (folder / "facts.json").write_text("{}")
    with pytest.raises(pf.DataError, match=r"facts\.json"):
        pf.Transcript.load(tmp_path)


def test_without_recording_a_run_has_no_transcript(tmp_path):
    assert record(record=False, rounds=1, out=tmp_path).transcript is None
    assert not (tmp_path / "transcript").exists()
    assert record(record=("public",), rounds=1).transcript.observer == "public"


def test_a_folder_that_shows_the_servers_view_is_no_secret(plain, tmp_path):
    _, run = plain
    assert any("sees what the server saw" in warning for warning in run.summary["warnings"])
    assert record(record=("public",), rounds=1, out=tmp_path).summary["warnings"] == []


def test_an_experiment_file_says_who_is_recorded(tmp_path):
    assert Experiment.from_dict({}).record is False
    asked = Experiment.from_dict({"record": ["public"], "rounds": 1, "partition": {"name": "iid", "clients": 2}})
    assert Experiment.from_dict(asked.to_dict()).record == asked.record == ("public",)
    assert asked.run(tmp_path).transcript.observer == "public"
    assert Experiment.from_dict({"record": True}).record is True
    with pytest.raises(pf.ConfigError, match="record"):
        Experiment.from_dict({"record": ["nobody"]})
