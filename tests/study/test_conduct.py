"""What is impossible is refused before trials and runs, and what fails stops no other."""

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.study.tuning import Tuning

BASE = {
    "rounds": 4,
    "workers": 1,
    "evaluate_every": 2,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "weighting": "uniform"},
    "training": {"batch_size": 36, "steps": 1},
}
RATE = "training.learning_rate"


def study(tuning: Tuning, **changes) -> pf.Study:
    return pf.Study(BASE, **{"title": "tuned", "seeds": 2, "tuning": tuning, **changes})


def test_a_typo_in_the_parameter_is_found_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'training\.learning_rate'"):
        study(Tuning("training.learning_rat", (0.1, 0.5))).run(tmp_path, processes=1)
    with pytest.raises(ConfigError, match="1 of 2 runs are impossible; mend them") as caught:
        study(Tuning(RATE, (0.1, -0.5)), seeds=1).run(tmp_path, processes=1)
    assert "learning_rate = -0.5" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_values_that_all_fail_make_their_runs_impossible_and_stop_no_others(tmp_path):
    bad = {"training": {"batch_size": 36, "steps": 1}, "max_upload_norm": 1e-12}
    one = study(
        Tuning(RATE, (0.1, 0.5)),
        variants=(pf.Variant("good", {}), pf.Variant("bad", bad)),
        seeds=1,
    )
    found = {member.method: member for member in one.run(tmp_path, processes=1).members}
    assert found["good"].state == "done"
    assert found["bad"].state == "impossible"
    assert found["bad"].reason.startswith("no trial of training.learning_rate came to a good end: the run ended")
