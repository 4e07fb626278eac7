"""A model that does not fit into memory is refused before it is built, in one sentence."""

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation import model_size


def test_the_default_model_on_huge_images_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(model_size, "machine_bytes", lambda: 8 * 2.0**30)
    with pytest.raises(
        ConfigError,
        match=r"'two-cnn' has 2,147,538,882 parameters on inputs of shape \(3, 1024, 1024\), and training it takes "
        r"32 GiB of memory at least, where this machine has 8\.0 GiB; scale the inputs down",
    ):
        pf.Task.from_arrays(np.zeros((4, 3, 1024, 1024), np.float32), [0, 1, 0, 1], clients=[0, 0, 1, 1])


def test_a_model_that_fits_is_counted_and_built(monkeypatch):
    task = pf.load("digits", partition=pf.IID(clients=4), model="two-nn", model_options={"hidden": (30,)})
    assert task.model.parameters() == sum(one.numel() for one in task.model(0).parameters())
    needed = 4.0 * model_size.COPIES * task.model.parameters()
    monkeypatch.setattr(model_size, "machine_bytes", lambda: needed)
    model_size.check_memory(task.model)
    monkeypatch.setattr(model_size, "machine_bytes", lambda: needed - 1)
    with pytest.raises(ConfigError, match="of memory at least"):
        model_size.check_memory(task.model)


def test_this_machine_tells_its_memory():
    assert 2.0**28 < model_size.machine_bytes() < float("inf")
