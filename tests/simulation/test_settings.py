"""The settings of a run: a new plain one is one line, and what was read is what is written."""

import tomllib
from dataclasses import dataclass, field

import pytest

from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.privacy.accounting.release import OBSERVERS
from privfl.privacy.noise.source import NoiseSource
from privfl.schema import BESIDE
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.run_directory import RunDirectory
from privfl.simulation.settings import Execution, RunConfig, Schedule


@dataclass(frozen=True)
class Longer(Schedule):
    """A schedule with a setting more: one line."""

    warm_up: int = 0


@dataclass(frozen=True)
class Patient(Execution):
    """An execution with a setting more."""

    patience: tuple[float, ...] = (1.0,)


def test_a_new_plain_setting_is_one_line_in_one_file(tmp_path, monkeypatch):
    """A field stands at the top of the file, is checked, written, read back, and tells two runs apart."""

    @dataclass(frozen=True)
    class Extended(Experiment):
        schedule: Longer = field(default_factory=Longer, metadata=BESIDE)
        execution: Patient = field(default_factory=Patient, metadata=BESIDE)

    monkeypatch.setattr(Extended, "__annotations__", {"schedule": Longer, "execution": Patient})
    path = tmp_path / "e.toml"
    path.write_text("rounds = 3\nwarm_up = 2\npatience = [1, 2]\n", encoding="utf-8")
    experiment = Extended.from_toml(path)
    assert (experiment.schedule.warm_up, experiment.execution.patience) == (2, (1.0, 2.0))
    assert experiment.to_dict()["warm_up"] == 2
    assert Extended.from_dict(tomllib.loads(experiment.to_toml())) == experiment
    with pytest.raises(ConfigError, match="warm_up is 'x'; give an integer"):
        Extended.from_toml(path, ["warm_up=x"])
    with pytest.raises(ConfigError, match="unknown key 'warmup': did you mean 'warm_up'"):
        Extended.from_toml(path, ["warmup=1"])
    directory = RunDirectory(tmp_path / "run")
    source, nothing = NoiseSource.from_os(), Fingerprint({}, {})
    directory.begin(experiment.to_dict(), nothing, source, noisy=True, resume=False)
    other = Extended.from_toml(path, ["warm_up=3"])
    with pytest.raises(ConfigError, match="warm_up is 2 there and 3 here"):
        directory.begin(other.to_dict(), nothing, source, noisy=True, resume=True)


def test_who_is_recorded_is_written_in_one_way():
    for given, told in (((), False), (OBSERVERS, True), (("server", "public"), True), (("public",), ("public",))):
        assert RunConfig(record=given).record == told
