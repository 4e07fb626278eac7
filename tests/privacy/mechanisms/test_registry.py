"""Names of mechanisms in configuration files, those of installed packages included."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.privacy.mechanisms import registry
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.privacy.mechanisms.registry import GROUP, UPDATE_MECHANISMS, update_mechanisms
from privfl.schema import choose, plain


@dataclass(frozen=True)
class SignOnly(Mechanism):
    """Keep the signs of an update, at its mean magnitude (Bernstein et al. 2018)."""

    kind = "transform"

    scale: float = 1.0

    def at_client(self, update, noise, round):
        return update.sign() * (self.scale * update.abs().mean())


def offer(monkeypatch, **points):
    """Pretend that an installed package offers ``points``: name → where its class stands."""
    found = [EntryPoint(name.replace("_", "-"), value, GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == GROUP else [])


def test_without_other_packages_the_names_are_those_of_privfl():
    assert update_mechanisms() == UPDATE_MECHANISMS


def test_an_entry_point_gives_a_mechanism_its_name_in_files(monkeypatch):
    offer(monkeypatch, sign_only=f"{__name__}:SignOnly")
    assert update_mechanisms()["sign-only"] is SignOnly
    settings = {
        "dataset": {"name": "digits"},
        "partition": {"name": "iid", "clients": 4},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"update": [{"name": "sign-only", "scale": 0.5}, {"name": "clip", "max_norm": 1.0}]},
        "rounds": 1,
    }
    experiment = Experiment.from_dict(settings)
    assert experiment.privacy.update == (SignOnly(0.5), pf.Clip(1.0))
    assert experiment.to_dict()["privacy"]["update"][0] == {"name": "sign-only", "scale": 0.5}


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ({"clip": f"{__name__}:SignOnly"}, "the entry point 'clip' of an unknown package takes a name that is taken"),
        ({"missing": "no_such_package_of_ours:Mechanism"}, r"cannot be loaded \(ModuleNotFoundError: .*uninstall"),
        ({"wrong": "math:sqrt"}, "is <built-in function sqrt>, no class of mechanisms; derive it from"),
        ({"wrong": "pathlib:Path"}, "no class of mechanisms"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused_by_name(monkeypatch, points, says):
    offer(monkeypatch, **points)
    with pytest.raises(ConfigError, match=says):
        update_mechanisms()


def test_a_mechanism_is_read_by_the_name_that_it_is_written_with():
    for mechanism in (pf.Clip(2.0), pf.GaussianNoise(1.5, at="client"), pf.SecureSum(threshold=0.6)):
        told = plain(mechanism, {pf.Clip | pf.GaussianNoise | pf.SecureSum: update_mechanisms()})
        assert choose(update_mechanisms(), {k: v for k, v in told.items() if v is not None}, "update") == mechanism
