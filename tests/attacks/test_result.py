"""A result always stands beside its nulls, and the judge's answers never reach an attack."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from attacks.attack import Attack
from attacks.auxiliary import Auxiliary, Records
from attacks.images.nulls import image_nulls
from attacks.images.result import reconstruction_result
from attacks.membership.result import MembershipResult, membership_result
from attacks.metrics.measure import Measure
from attacks.result import AttackResult
from privfl.errors import ConfigError


def result(**changes) -> AttackResult:
    given = {
        "attack": "test",
        "primary": "mse",
        "metrics": {"mse": Measure(0.1, 0.05, 0.2), "psnr": Measure(10.0)},
        "nulls": {"mean": {"mse": Measure(0.4, 0.3, 0.5), "psnr": Measure(4.0)}, "worse": {"mse": Measure(0.6)}},
        "seconds": 6.0,
        "units": 3,
        "unit": "image",
    }
    return AttackResult(**{**given, **changes})


def test_the_advantage_is_over_the_best_null_and_counts_upwards():
    found = result().advantage
    assert found["mse"].value == pytest.approx(0.3)
    assert (found["mse"].low, found["mse"].high) == pytest.approx((0.1, 0.45))
    assert found["psnr"].value == pytest.approx(6)
    assert result().seconds_per_unit == 2


@pytest.mark.parametrize("changes", [{"nulls": {}}, {"nulls": {"mean": {"psnr": Measure(1.0)}}}, {"units": 0}])
def test_a_result_without_a_null_cannot_exist(changes):
    with pytest.raises(ConfigError):
        result(**changes)


def test_a_result_becomes_json_and_text_and_a_figure():
    text = json.dumps(result().to_json(), allow_nan=False)
    assert json.loads(text)["advantage"]["mse"]["value"] == pytest.approx(0.3)
    assert json.loads(text)["nulls"]["mean"]["psnr"]["low"] is None
    assert "null: mean" in str(result())
    assert len(result().figure().axes[0].patches) == 3


def test_membership_is_judged_over_all_and_class_by_class():
    """Scores that only recognise the class look good over all and are chance within the classes."""
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 200)
    members = generator.random(400) < np.where(labels == 0, 0.9, 0.1)
    scores = (labels == 0) + 1e-3 * generator.random(400)
    found = membership_result(
        "class", scores, members, labels=labels, null_scores={"label": labels == 0}, seconds=1.0, rates=(0.1,)
    )
    assert found.metrics["auc"].value == pytest.approx(roc_auc_score(members, scores))
    assert found.metrics["auc"].value > 0.85
    assert abs(found.metrics["class_auc"].value - 0.5) < 0.15
    assert found.advantage["auc"].value < 0.05, "the null that knows the labels is as good"
    assert found.nulls["chance"]["tpr_at_fpr_0.1"].value == 0.1
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["members"] == int(members.sum())
    axes = found.figure().axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_images_are_matched_before_they_are_scored():
    generator = torch.Generator().manual_seed(1)
    truth, public = (torch.rand(4, 1, 12, 12, generator=generator) for _ in range(2))
    labels = torch.tensor([0, 0, 1, 1])
    nulls = image_nulls(public, labels, torch.tensor([1, 0, 1, 0]), generator)
    assert torch.allclose(nulls["class mean"][0], public[2:].mean(0))
    assert any(torch.equal(nulls["random image"][1], image) for image in public[:2])
    found = reconstruction_result("copy", truth.flip(0), truth, nulls, seconds=2.0)
    assert found.metrics["psnr"].value == 100
    assert found.advantage["psnr"].value > 80
    assert found.advantage["mse"].value > 0
    assert torch.equal(found.images, truth)
    unmatched = reconstruction_result("copy", truth.flip(0), truth, nulls, seconds=2.0, match=False)
    assert unmatched.metrics["psnr"].value < 20
    assert len(found.figure().axes) == 5 * 4
    with pytest.raises(ConfigError, match="class 7"):
        image_nulls(public, labels, torch.tensor([7]), generator)
    with pytest.raises(ConfigError, match="finite"):
        reconstruction_result("bad", truth * math.nan, truth, nulls, seconds=1.0)


@dataclass(frozen=True)
class Peeping(Attack):
    """Tries to read the answers."""

    name: ClassVar[str] = "peeping"
    needs_classes: ClassVar[bool] = False

    def guess(self, seen, auxiliary):
        return auxiliary.answer("members")

    def judge(self, guess, auxiliary, seconds) -> MembershipResult:
        return membership_result("peeping", guess, auxiliary.answer("members"), seconds=seconds)


def test_an_attack_never_sees_the_answers():
    auxiliary = Auxiliary(truth={"members": torch.tensor([True, False])})
    with pytest.raises(ConfigError, match="the truth holds nothing"):
        Peeping().run(None, auxiliary)
    assert auxiliary.answer("members").tolist() == [True, False]


def test_what_the_attacker_lacks_is_named():
    with pytest.raises(ConfigError, match="public"):
        Auxiliary().need_public()
    with pytest.raises(ConfigError, match="records"):
        Auxiliary().need_candidates()
    with pytest.raises(ConfigError, match="1 inputs and 2 targets"):
        Records(torch.zeros(1, 2), torch.zeros(2, dtype=torch.int64))
