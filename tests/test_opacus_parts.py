"""Opacus is imported as if nobody had asked for another device."""

import torch

from privfl import opacus_parts


def test_opacus_is_imported_for_the_host_whatever_device_is_asked_for(monkeypatch):
    seen = []
    imported = opacus_parts.import_module

    def watched(name):
        seen.append((name, torch.empty(0).device.type))
        return imported(name)

    monkeypatch.setattr(opacus_parts, "import_module", watched)
    monkeypatch.delitem(vars(opacus_parts), "DPLSTM", raising=False)
    with torch.device("meta"):
        part = opacus_parts.DPLSTM
        assert torch.empty(0).device.type == "meta"
    assert seen == [("opacus.layers.dp_rnn", "cpu")]
    assert part.__name__ == "DPLSTM"
