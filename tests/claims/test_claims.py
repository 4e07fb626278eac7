"""What a statement claims holds in drawn experiments, and every planted defect breaks it."""

from collections import Counter
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from audits.fuzz.campaign import Campaign
from audits.fuzz.drawing import draw
from audits.fuzz.exact import check
from audits.fuzz.experiment import Experiment
from tests.claims.planted.catalogue import INSIDE, OUTSIDE
from tests.claims.planted.inside import changed

ONCE_BROKEN = Path(__file__).parent / "once_broken"
SEED = 12
BLOCKS, BLOCK = 2, 40
"""Experiments of this many blocks; 20,000 are a campaign, whose report is docs/results/claim-fuzzer.md."""
MOST_TRIED = 60
"""Of drawn experiments that might show a planted defect; the harmless ones among them are many."""
RERUNS = 8
"""Data of an experiment with an outside part: what is coupled shows in some rows only."""


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_drawn_experiment_breaks_a_claim(block):
    campaign = Campaign(10**6, SEED)
    lines = [campaign.line(block * 10_000 + number) for number in range(BLOCK)]
    assert [(line["number"], line["violations"]) for line in lines if line["status"] == "broken"] == []
    statuses = Counter(line["status"] for line in lines)
    assert statuses["crashed"] == 0, [line["reason"] for line in lines if line["status"] == "crashed"]
    assert statuses["held"] >= 0.9 * BLOCK, statuses
    assert sum(line["moved"] for line in lines) > BLOCK, "worlds whose noised values agree show nothing"


@pytest.mark.parametrize("file", sorted(ONCE_BROKEN.glob("*.json")), ids=lambda file: file.stem)
def test_an_experiment_that_once_broke_a_claim_holds(file):
    """Rounding of other rows, and of other clients in a stack, was amplified by data that cancel."""
    verdict = check(Experiment.from_json(file.read_text(encoding="utf-8")))
    assert (verdict.status, verdict.violations) == ("held", ())


@pytest.mark.parametrize("name", INSIDE)
def test_a_defect_of_the_library_is_found(name):
    changes, like = INSIDE[name]
    for tried in islice((one for one in (draw(7, number) for number in count()) if like(one)), MOST_TRIED):
        assert check(tried).status != "broken"
        with changed(changes):
            if check(tried).status == "broken":
                return
    raise AssertionError(f"{MOST_TRIED} experiments hold, although there is {name}")


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_part_of_ones_own_breaks_no_claim(name, engine):
    """Refused, ∞, or harmless: anything but a claim that does not hold."""
    experiment = OUTSIDE[name].but(engine=engine)
    verdicts = (
        check(experiment.but(data=replace(experiment.data, seed=seed), noise_key=seed + 1)) for seed in range(RERUNS)
    )
    statuses = []
    for verdict in verdicts:
        statuses.append(verdict.status)
        if verdict.status in ("broken", "refused", "vacuous"):
            break  # a refusal and an ∞ do not depend on the data
    assert "broken" not in statuses
    assert "crashed" not in statuses
