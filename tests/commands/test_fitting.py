"""An attack that cannot be tried on a run is named before anything is trained, and such runs can be left out."""

import pytest

import privfl as pf
from attacks.registry import ATTACKS
from privfl.commands.examine import check, examine
from privfl.commands.fitting import misfit
from privfl.errors import ConfigError
from privfl.simulation.plan import prepare
from privfl.study.members import settings_of

BASE = {
    "rounds": 1,
    "workers": 1,
    "record": True,
    "dataset": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "training": {"steps": 1},
}
PART = "gradient-alignment reads updates of the whole model, and fedper sends a part of it; leave it out"


def test_runs_that_an_attack_does_not_fit_are_named_at_once_and_can_be_skipped(tmp_path):
    model = {"name": "two-nn", "hidden": [16]}
    variants = tuple(
        pf.Variant(name, {"algorithm": {"name": name, "weighting": "uniform"}}) for name in ("fedavg", "fedper")
    )
    study = pf.Study(
        BASE | {"model": model}, title="t", variants=variants, attacks=({"name": "gradient-alignment", "client": 0},)
    )
    with pytest.raises(ConfigError, match=f"1 of 2 runs are impossible(.|\n)*fedper, as given: {PART}"):
        study.run(tmp_path, processes=1, examine=examine, check=check)
    assert not (tmp_path / "runs").exists()
    found = study.run(tmp_path, processes=1, examine=examine, check=check, skip_impossible=True)
    done, left = found.members
    assert (done.state, left.state) == ("done", "impossible")
    assert "attack gradient-alignment advantage" in done.metrics
    assert PART in left.reason


@pytest.mark.parametrize(
    ("attack", "settings", "changes", "sentence"),
    [
        ("loss-threshold", {}, {}, ""),
        ("label-counts", {}, {}, ""),
        ("gradient-alignment", {"client": 4}, {}, "give it one of the clients 0 to 3"),
        ("prototype-tracing", {}, {}, "reads 'prototype_sums', which clients of fedavg do not send"),
        ("size-from-responses", {}, {}, "reads randomised answers about sizes, and fedavg gets none here"),
        (
            "gradient-alignment",
            {"client": 0},
            {"privacy": {"update": [{"name": "clip", "max_norm": 1.0}, {"name": "secure-sum"}]}},
            "the server opens sums alone; leave client out",
        ),
    ],
)
def test_what_an_attack_needs_is_held_against_what_the_run_will_send(attack, settings, changes, sentence):
    base = {"algorithm": {"name": "fedavg", "weighting": "uniform"}}
    experiment = pf.Experiment.from_dict(BASE | base | changes)
    plan = prepare(settings_of(experiment, experiment.task()))
    told = misfit(ATTACKS[attack](**settings), plan, 0.5)
    assert sentence in told
    assert bool(sentence) == bool(told)
    assert "leaves loss-threshold or its judge none" in misfit(ATTACKS["loss-threshold"](), plan, 1e-9)
