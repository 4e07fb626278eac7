"""Which settings suit a run: single messages or sums, the largest client or the smallest."""

import privfl as pf
from attacks.battery.lineup import lineup
from attacks.judge import Judge
from privfl.simulation.transcript import Transcript
from tests.attacks.battery.runs import recorded


def test_sums_are_attacked_as_sums(tmp_path):
    folder = recorded(tmp_path / "sum", privacy=pf.Privacy(update=(pf.Clip(1.0), pf.SecureSum(mode="ideal"))))
    settings = {entry.label: entry.settings for entry in lineup(Transcript.load(folder), Judge.of(folder, 0, 0.5, 36))}
    assert settings["gradient-alignment"] == {"client": None}
    assert settings["imprint"] == {"client": None, "batch": 18}
