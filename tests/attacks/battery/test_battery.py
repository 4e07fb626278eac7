"""Everything that applies to a run: a tiny one in which every client takes one step on a few digits."""

import json

import pytest

import attacks.battery.battery
import privfl as pf
from attacks.battery.battery import POWERS, Battery, attempts, best
from attacks.battery.lineup import lineup
from attacks.judge import Judge
from attacks.registry import ATTACKS
from privfl.errors import ConfigError
from tests.attacks.battery import runs
from tests.attacks.battery.runs import recorded
from tests.commands.command_line import privfl


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("battery") / "run")


def quick(seen, judge):
    """The line-up without a search of 4,800 steps, which takes longer than everything else together."""
    return [entry for entry in lineup(seen, judge) if entry.label != "gradient-inversion-inverting-gradients"]


@pytest.fixture(scope="module")
def found(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks.battery.battery, "lineup", quick)
        return best(run, candidates=36, budget=60.0)


def test_every_attack_of_the_registry_is_tried_or_gives_its_reason(found):
    assert {one.kind for one in found.attempts} == set(ATTACKS.values())
    assert all((one.result is None) == bool(one.reason) for one in found.attempts)
    labels = [one.label for one in found.attempts]
    assert len(set(labels)) == len(labels)
    order = [POWERS.index(one.kind.power) for one in found.attempts]
    assert order == sorted(order)
    reasons = {one.label: one.reason for one in found.attempts if one.reason}
    assert "sends no label counts" in reasons["disclosed-counts"]
    assert "reads a single image, not 3" in reasons["gradient-inversion-wiener"]


@pytest.mark.parametrize("kind", ["regression", "multi_label", "next_token"])
def test_for_every_kind_of_task_each_attack_has_a_result_or_a_reason(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(attacks.battery.battery, "lineup", quick)
    training = pf.LocalTraining(learning_rate=0.1, batch_size=3, epochs=1)
    task = getattr(runs, kind)()
    pf.simulate(task, pf.FedAvg(weighting="uniform"), rounds=1, training=training, record=True, out=tmp_path / "run")
    found = best(tmp_path / "run", candidates=20, task=f"{runs.__name__}:{kind}")
    assert {one.kind for one in found.attempts} == set(ATTACKS.values())
    reasons = {one.label: one.reason for one in found.attempts}
    for one in found.attempts:
        assert (one.result is None) == bool(one.reason)
        if one.kind.needs_classes:
            assert "have none; leave it out" in one.reason or "reads a single image" in one.reason
    assert bool(reasons["words"]) == (kind != "next_token")


def test_images_of_ones_own_are_attacked_in_the_range_that_the_file_says(tmp_path, monkeypatch):
    def chosen(seen, judge):
        return [entry for entry in lineup(seen, judge) if entry.label in ("gradient-inversion-analytic", "imprint")]

    monkeypatch.setattr(attacks.battery.battery, "lineup", chosen)
    training = pf.LocalTraining(learning_rate=0.1 / 255, batch_size=3, epochs=1)
    fedavg, run = pf.FedAvg(weighting="uniform"), tmp_path / "run"
    pf.simulate(runs.bytes_of_images(), fedavg, rounds=1, training=training, record=True, out=run)
    task = f"{runs.__name__}:bytes_of_images"
    refused = best(run, task=task)
    assert all("clients' inputs, taken as they are, lie in [" in one.reason for one in refused.attempts)
    (tmp_path / "all.toml").write_text(
        f'run = "{run.as_posix()}"\ntask = "{task}"\nall = true\n[pixels]\nmean = [0]\nstd = [{1 / 255}]\n'
    )
    code, out, err = privfl("attack", tmp_path / "all.toml")
    assert code == 0, err
    found = best(run, task=task, pixels=attacks.Pixels((0.0,), (1 / 255,)))
    assert found.attempts[0].result.metrics["psnr"].value > 40
    assert all(one.result.settings["pixels"]["std"] == (1 / 255,) for one in found.attempts)
    assert "gradient-inversion-analytic" in out


def test_the_best_of_each_power_is_listed_with_what_it_needed(found):
    listed = {(one.kind.power, one.result.primary): one.label for one in found.best}
    assert listed["passive", "psnr"] == "gradient-inversion-spear"
    assert listed["active", "psnr"] == "imprint"
    assert listed["poisoning", "auc"] == "poisoned-membership"
    text = str(found)
    assert "the server's view of a run it had a hand in, public records" in text
    assert "Without a result:" in text
    told = found.to_json()
    assert [entry["label"] for entry in told["attempts"]] == [one.label for one in found.attempts]
    json.dumps(told, allow_nan=False)


def test_an_attack_that_takes_too_long_is_given_up(run):
    judge = Judge.of(run, 0, 0.5, 36)
    first = next(iter(attempts(run, judge, budget=1e-4)))
    assert first.result is None
    assert "not done within 0.0001 s" in first.reason
    assert "loss-threshold: not done" in str(Battery((first,)))
    with pytest.raises(ConfigError, match="budget"):
        next(iter(attempts(run, judge, budget=0)))


def test_the_command_prints_the_table_and_files_results_and_reasons(run, monkeypatch):
    cheap = ("loss-threshold", "label-counts", "disclosed-counts", "imprint")

    def chosen(seen, judge):
        return [entry for entry in lineup(seen, judge) if entry.label in cheap]

    monkeypatch.setattr(attacks.battery.battery, "lineup", chosen)
    code, out, err = privfl("attack", run, "--all", "--budget", "60")
    assert code == 0, err
    assert "attacker" in out
    assert (run / "attacks" / "imprint.json").exists()
    assert "disclosed-counts: fedavg sends no label counts" in out
    assert json.loads((run / "attacks" / "refused" / "disclosed-counts.json").read_text())["reason"]
    code, _, err = privfl("attack", run)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "add --all" in err
    code, _, err = privfl("attack", run / "config.toml", "--all")
    assert code == 2
    assert "is no directory" in err
    kept = pf.simulate(pf.load("digits", partition=pf.IID(clients=2)), pf.FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match="kept in memory"):
        best(kept)
