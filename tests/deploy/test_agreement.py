"""What was agreed: read, compared and refused by the name of what differs."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from privfl.deploy.agreement import Federation, Policy, PolicyDiffers, shared_settings
from privfl.deploy.tasks import TaskDescription
from privfl.errors import ConfigError
from privfl.schema import Named
from tests.deploy.rehearsal import Rehearsal, experiment

TASK = TaskDescription("digits", 100, (64,), 10, Named("logistic"))
FEDERATION = Federation("stcp://127.0.0.1:1", "a" * 64, ("b" * 64, "c" * 64), TASK, 5.0)


def test_a_federation_file_reads_back(tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text(FEDERATION.to_toml(), encoding="utf-8")
    assert Federation.from_toml(file) == FEDERATION


def test_the_federation_file_of_the_documentation_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "federation.md").read_text(encoding="utf-8")
    file = tmp_path / "federation.toml"
    file.write_text(textwrap.dedent(page.split("```toml")[1].split("```")[0]), encoding="utf-8")
    read = Federation.from_toml(file)
    assert len(read.keys) == 3
    assert read.task.model == Named("logistic")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"server": "x"}, "is no public key"),
        ({"clients": ("b" * 64, "b" * 64)}, "have the same key"),
        ({"clients": ()}, "has no clients"),
        ({"seconds": 0.0}, "seconds"),
    ],
)
def test_an_impossible_federation_is_refused(changed, sentence):
    with pytest.raises(ConfigError, match=sentence):
        replace(FEDERATION, **changed)


def test_a_policy_is_compared_setting_by_setting():
    agreed, policy = experiment(), Policy.of(bytes(32), experiment(), FEDERATION)
    Policy.from_dict(policy.to_dict()).check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match="rounds is 9 there and 2 here"):
        Policy.of(bytes(32), experiment(rounds=9), FEDERATION).check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match=r"seconds is 7\.0 there and 5\.0 here"):
        Policy.of(bytes(32), agreed, replace(FEDERATION, seconds=7.0)).check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match="another version of privfl's code"):
        replace(policy, code="0").check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match=r"other libraries: torch is \"1\.0\" there and .* here; install the same"):
        replace(policy, libraries={**policy.libraries, "torch": "1.0"}).check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match="algorithm has the same settings and other code than here"):
        replace(policy, parts={**policy.parts, "algorithm": "0"}).check(agreed, FEDERATION)
    with pytest.raises(PolicyDiffers, match="sent no policy"):
        Policy.from_dict({"run": "00"})


def test_where_the_data_are_and_how_fast_it_goes_is_each_party_s_own_affair():
    shared = shared_settings(experiment(workers=1, partition={"name": "iid", "clients": 4}))
    assert shared == shared_settings(experiment())
    assert not {"dataset", "partition", "workers", "record", "device"} & set(shared)


def test_the_code_of_a_part_of_one_s_own_is_part_of_the_policy(tmp_path, monkeypatch):
    text = "from dataclasses import dataclass\nimport privfl as pf\n@dataclass(frozen=True)\nclass Mine(pf.FedAvg):\n"
    file = tmp_path / "doubled.py"
    file.write_text(text + "    name = 'mine'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = experiment(algorithm={"name": "doubled:Mine"})
    policy = Policy.of(bytes(32), own, FEDERATION)
    policy.check(own, FEDERATION)
    file.write_text(text + "    name = 'other'\n", encoding="utf-8")
    with pytest.raises(PolicyDiffers, match="algorithm has the same settings and other code than here"):
        policy.check(own, FEDERATION)


def test_so_is_that_of_a_loss_which_is_wrapped_like_a_library_s(tmp_path, monkeypatch):
    text = "import functools\nimport torch.nn.functional as F\n"
    text += "@functools.wraps(F.cross_entropy)\ndef wrapped(*given):\n"
    file = tmp_path / "a_wrapped_loss.py"
    file.write_text(text + "    return F.cross_entropy(*given)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    federation = replace(FEDERATION, task=replace(TASK, loss=Named("a_wrapped_loss:wrapped")))
    policy = Policy.of(bytes(32), experiment(), federation)
    policy.check(experiment(), federation)
    file.write_text(text + "    return 2 * F.cross_entropy(*given)\n", encoding="utf-8")
    with pytest.raises(PolicyDiffers, match="loss has the same settings and other code than here"):
        policy.check(experiment(), federation)


def test_so_is_what_is_frozen_in_a_model_which_no_message_carries(tmp_path, monkeypatch):
    (tmp_path / "a_frozen_model.py").write_text(
        "import torch\nfrom torch import nn\nVALUE = 1.0\n"
        "def build():\n"
        "    network = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))\n"
        "    network[0].bias.fill_(VALUE)\n"
        "    return network\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    federation = replace(FEDERATION, task=replace(TASK, model=Named("a_frozen_model:build")))
    policy = Policy.of(bytes(32), experiment(), federation)
    policy.check(experiment(), federation)
    monkeypatch.setattr("a_frozen_model.VALUE", 2.0)  # as another file with weights would give it
    with pytest.raises(PolicyDiffers, match="another frozen part of the model than this client; give every party"):
        policy.check(experiment(), federation)


def test_what_is_dealt_out_can_be_read_by_its_owner_alone(tmp_path):
    folders = Rehearsal(tmp_path / "federation", experiment()).folders
    assert {(folder / "data.npz").stat().st_mode & 0o777 for folder in folders.values()} == {0o600}
