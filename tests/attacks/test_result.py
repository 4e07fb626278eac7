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
from attacks.battery.battery import best
from attacks.images.nulls import image_nulls
from attacks.images.result import reconstruction_result
from attacks.membership.game import membership_game
from attacks.membership.result import MembershipResult, membership_result
from attacks.metrics.measure import Measure
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.simulation.result import Run
from privfl.simulation.transcript import PublicFacts, Transcript


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


FACTS = PublicFacts("arrays", {}, {}, {}, {}, {}, "own", None, (2, 2), 2, 1, 1, None, "cross_entropy")
TRANSCRIPT = Transcript(FACTS, "public", [])
THREE = Records(torch.zeros(3, 4), torch.tensor([0, 1, 2]))


def game_with(members):
    """A game about three candidates."""
    return Auxiliary(candidates=THREE, truth={"members": members})


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
        Peeping().run(TRANSCRIPT, auxiliary)
    assert auxiliary.answer("members").tolist() == [True, False]


def test_what_the_attacker_lacks_is_named():
    with pytest.raises(ConfigError, match="public"):
        Auxiliary().need_public()
    with pytest.raises(ConfigError, match="records"):
        Auxiliary().need_candidates()
    with pytest.raises(ConfigError, match="1 inputs and 2 targets"):
        Records(torch.zeros(1, 2), torch.zeros(2, dtype=torch.int64))


def test_a_run_stands_for_its_transcript():
    answers = Auxiliary(truth={"members": torch.tensor([True, False])})
    for seen in (TRANSCRIPT, Run(torch.zeros(1), [], None, {}, transcript=TRANSCRIPT)):
        with pytest.raises(ConfigError, match="the truth holds nothing"):  # the attack was reached
            Peeping().run(seen, answers)


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (None, "nothing of the run was recorded, .* run it with record=True"),
        (Run(torch.zeros(1), [], None, {}), "nothing of the run was recorded, .* run it with record=True"),
        ("runs/fedavg", "an attack reads a transcript, not 'runs/fedavg'; give run.transcript"),
    ],
)
def test_what_is_no_transcript_is_refused(seen, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Peeping().run(seen, Auxiliary())


def test_numpys_arrays_and_lists_are_records_and_answers_too():
    records = Records(np.ones((3, 4)), [0, 1, 2])
    assert (records.inputs.dtype, records.targets.dtype) == (torch.float32, torch.int64)
    given = Auxiliary(records, records, {"members": [True, False, 1]}, np.array([0, 0, 1]))
    assert given.answer("members").tolist() == [True, False, True]
    assert given.users.dtype == torch.int64
    single = torch.ones(3, 4, dtype=torch.float64)
    assert Records(single, torch.arange(3)).inputs is single, "a tensor is taken as it is"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Records([["a"]], [0]), "the records' inputs are .* give a tensor or an array of numbers"),
        (lambda: Records([[1.0], [1.0, 2.0]], [0, 1]), "the records' inputs are .* give a tensor or an array"),
        (lambda: Records(torch.ones(1, 2), 3), "the records' targets are a single value, 3; give one for each"),
        (lambda: Auxiliary(public=torch.ones(2)), r"public is a Tensor .* give attacks.Records\(inputs, targets\)"),
        (lambda: Auxiliary(truth=[True]), "the truth is .* give answers by their names"),
        (lambda: game_with(members=[True, False]), r"truth\['members'\] is a Tensor of shape \(2,\) for 3 candidates"),
        (lambda: game_with(members=[2, 0, 1]), "give True or False for each"),
        (lambda: Peeping().run(TRANSCRIPT, THREE), r"auxiliary data are Records\(…\); give attacks.Auxiliary"),
        (
            lambda: Peeping().run(TRANSCRIPT, Auxiliary(THREE)),
            r"public records have inputs float32 \(4,\), and the run's",
        ),
        (
            lambda: Peeping().run(TRANSCRIPT, Auxiliary(candidates=THREE)),
            "candidates .* give them as the network takes",
        ),
        (lambda: membership_game(THREE, THREE, 0), "generator is 0; give a torch.Generator"),
        (lambda: membership_game(THREE.inputs, THREE, torch.Generator()), "members or others are a Tensor of shape"),
        (lambda: best(TRANSCRIPT), "run is .*Transcript.*; give "),
    ],
)
def test_ordinary_mistakes_are_one_sentence(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()
