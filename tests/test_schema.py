"""Settings from plain data and back: unknown keys, wrong types and missing names are one sentence each."""

from dataclasses import dataclass

import pytest

import privfl as pf
from attacks.labels.inference import LLG
from attacks.membership.lira import LiRA
from attacks.membership.shadow_models import ShadowTraining
from attacks.registry import ATTACKS
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.cohorts import COHORTS, Cohort
from privfl.schema import KINDS, build, choose_each, override, plain, read_toml


@dataclass(frozen=True)
class CohortWithout:
    """A part with a part and a set."""

    cohort: Cohort
    left_out: frozenset[int]


def attack_from(table, registry):
    (attack,) = choose_each(registry, [table], "attack")
    return attack


def test_settings_become_fields_and_tables_become_parts():
    assert attack_from({"name": "llg", "variant": "plain", "labels": 7}, ATTACKS) == LLG(variant="plain", labels=7)
    built = attack_from({"name": "lira", "queries": ["identity", "flip"], "shadows": {"count": 8}}, ATTACKS)
    assert built == LiRA(queries=("identity", "flip"), shadows=ShadowTraining(count=8))


def test_sets_are_written_in_order_and_read_as_sets():
    part = CohortWithout(pf.PoissonCohort(0.5), frozenset({3, 1, 2}))
    told = plain(part, {Cohort: COHORTS})
    assert told == {"cohort": {"name": "poisson", "probability": 0.5}, "left_out": [1, 2, 3]}
    assert build(CohortWithout, told, "cohort", {Cohort: COHORTS}) == part


@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_attack_can_be_had_by_its_name_alone(name):
    assert attack_from({"name": name}, ATTACKS) == ATTACKS[name]()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "has no name"),
        ({"name": 3}, "attack.name is 3; give a name in quotes, see `privfl list attacks`"),
        ({"name": "lirra"}, "did you mean 'lira'"),
        ({"name": "lira", "shadow": {}}, "did you mean 'lira.shadows'"),
        ({"name": "lira", "shadows": 4}, "write a table"),
        ({"name": "lira", "shadows": {"counts": 4}}, "did you mean 'lira.shadows.count'"),
        ({"name": "lira", "shadows": {"count": "four"}}, "lira.shadows.count is 'four'"),
        ({"name": "lira", "round": 1.5}, "lira.round is 1.5; give an integer"),
        ({"name": "llg", "variant": "star"}, "'plain', 'dummy' or 'auxiliary'"),
        ({"name": "llg", "rounds": True}, "llg.rounds is True"),
    ],
)
def test_what_does_not_fit_is_named(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        attack_from(settings, ATTACKS)


def test_an_assignment_without_a_value_takes_the_key_away():
    settings = {"rounds": 3, "privacy": {"training": {"sample_rate": 0.1}, "target_delta": 1e-6}}
    override(settings, "privacy.training=")
    override(settings, "rounds= ")
    assert settings == {"privacy": {"target_delta": 1e-6}}
    override(settings, 'name=""')
    assert settings["name"] == ""
    for missing in ("round=", "privacy.trainig=", "name.of="):
        with pytest.raises(ConfigError, match="unsets a key that the file does not set"):
            override(settings, missing)


@pytest.mark.parametrize("key", KINDS)
def test_a_file_of_another_kind_is_named_with_the_command_that_starts_it(key, tmp_path):
    (path := tmp_path / "w.toml").write_text(f"[{key}]\n", encoding="utf-8")
    kind, command = KINDS[key]
    assert read_toml(path, kind) == {key: {}}
    for other in {"an experiment file", *(kind for kind, _ in KINDS.values())} - {kind}:
        with pytest.raises(ConfigError, match=f"is {kind}, since it has '{key}'.*start it by `{command}`"):
            read_toml(path, other)


def test_a_table_whose_keys_stand_beside_the_others_says_where_they_stand():
    with pytest.raises(
        ConfigError, match=r"'execution' is no table of its own: its keys \(device, .*\) stand at the top "
    ):
        Experiment.from_dict({"rounds": 1, "execution": {"device": "cuda"}})
    with pytest.raises(ConfigError, match=r"write 'device' in the place of 'execution\.device'$"):
        Experiment.from_dict({"rounds": 1, "execution": {"device": "cuda"}})


def test_a_file_that_begins_with_the_mark_of_utf_8_is_read(tmp_path):
    (tmp_path / "one.toml").write_bytes("rounds = 3\n".encode("utf-8-sig"))
    assert read_toml(tmp_path / "one.toml", "an experiment file") == {"rounds": 3}
