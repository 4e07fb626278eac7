"""Group privacy on counts against TensorFlow Privacy's pins and the closed form at δ = 0."""

import json
import math
from pathlib import Path

import pytest

from audits.bounds.counts import epsilon_from_counts
from audits.bounds.poisoning import epsilon_from_poisoning
from privfl.errors import ConfigError

PINS = json.loads((Path(__file__).parents[2] / "oracles" / "audits.json").read_text())["clopper_pearson_tf_pins"]


@pytest.mark.parametrize("row", PINS["rows"])
def test_the_pins_of_tensorflow_privacy(row):
    (hits, members), (alarms, others) = (tuple(map(int, row[key].split("/"))) for key in ("tp", "fp"))
    found = epsilon_from_poisoning(
        hits, members, alarms, others, poisons=row.get("poison_count", 1), delta=0.0, confidence=1 - row["alpha"]
    )
    assert found.epsilon == pytest.approx(row["eps"], abs=1e-9)


@pytest.mark.parametrize("counts", [(900, 1000, 100, 1000), (1000, 1000, 400, 1000), (50, 100, 60, 100)])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_one_poison_is_one_record(counts, delta):
    one = epsilon_from_poisoning(*counts, poisons=1, delta=delta, confidence=0.95)
    assert one.epsilon == pytest.approx(epsilon_from_counts(*counts, delta=delta, confidence=0.95).epsilon, abs=1e-8)
    assert one.epsilon <= epsilon_from_counts(*counts, delta=delta, confidence=0.95).epsilon


def test_with_delta_the_bound_is_where_the_group_of_records_just_allows_the_rates():
    found = epsilon_from_poisoning(990, 1000, 10, 1000, poisons=4, delta=1e-2, confidence=0.95)
    epsilon, rates = found.epsilon, found.details
    group = math.exp(4 * epsilon) * rates["fpr_high"] + 1e-2 * sum(math.exp(j * epsilon) for j in range(4))
    assert group == pytest.approx(rates["tpr_low"], rel=1e-7)
    assert 0 < epsilon < epsilon_from_poisoning(990, 1000, 10, 1000, poisons=4, delta=0.0, confidence=0.95).epsilon


@pytest.mark.parametrize("poisons", [0, -1, 1.5])
def test_a_group_has_at_least_one_record(poisons):
    with pytest.raises(ConfigError):
        epsilon_from_poisoning(9, 10, 1, 10, poisons=poisons, delta=0.0, confidence=0.9)
