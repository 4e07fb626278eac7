"""A campaign is the same however often it is interrupted, and its report says what was run."""

import json

from audits.fuzz import campaign as campaign_module
from audits.fuzz.__main__ import main
from audits.fuzz.campaign import Campaign


def without_time(lines):
    return sorted(({**line, "seconds": 0} for line in lines), key=lambda line: line["number"])


def test_a_campaign_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign_module, "BLOCK", 6)
    campaign, log = Campaign(9, seed=1, engine="loop"), tmp_path / "lines.jsonl"
    whole = without_time(campaign.run())
    begun = campaign.run(log)
    next(begun)
    begun.close()
    log.write_text(log.read_text() + '{"number": 7')  # killed while it wrote
    assert without_time(campaign.run(log)) == whole
    assert without_time(campaign.run(log)) == whole
    assert {line["dimensions"]["engine"] for line in whole} == {"loop"}


def test_the_report_holds_counts_seed_and_coverage(tmp_path):
    out = tmp_path / "report.md"
    code = main(["--experiments", "8", "--seed", "5", "--engine", "loop", "--out", str(out)])
    raw = json.loads(out.with_suffix(".json").read_text())
    assert raw["experiments"] == sum(raw["statuses"].values()) == 8
    assert code == int(raw["statuses"]["broken"] > 0)
    assert sum(sum(one.values()) for one in raw["coverage"]["algorithm"].values()) == 8
    assert "--seed 5" in out.read_text()
    assert "| engine | checked | broken | refused or vacuous |" in out.read_text()
