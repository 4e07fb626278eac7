"""A task in parts: each party has its own rows, and all have the same models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privfl.deploy.tasks import TaskDescription
from privfl.errors import DataError
from privfl.schema import Named
from tests.damaged_archives import DAMAGES

TASK = TaskDescription("ours", 10, (3,), 2, Named("logistic"))


def test_a_client_has_its_own_rows_and_nobody_else_s_and_a_server_none(tmp_path):
    inputs = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "c.npz", inputs=inputs, targets=np.array([0, 1, 1, 0]))
    np.savez(tmp_path / "s.npz", test_inputs=inputs[:2], test_targets=np.array([0, 1]))
    client, server = TASK.of_client(1, 3, tmp_path / "c.npz"), TASK.of_server(3, tmp_path / "s.npz")
    assert [len(client.clients[number]) for number in range(3)] == [0, 4, 0]
    assert torch.equal(client.inputs[client.clients[1]], torch.from_numpy(inputs))
    assert len(server.inputs) == 0
    assert len(server.clients.rows) == 10
    one, other = (list(task.model(5).parameters()) for task in (client, server))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"inputs": np.zeros((2, 3), np.float32)}, "does not hold the arrays inputs and targets"),
        ({"inputs": np.zeros((2, 3), "U1"), "targets": np.zeros(2, np.int64)}, "does not hold the arrays inputs and"),
        ({"inputs": np.float32(1), "targets": np.zeros(2, np.int64)}, "holds a single value as inputs; give one row"),
        ({"inputs": np.zeros((2, 4), np.float32), "targets": np.zeros(2, np.int64)}, "agreed on"),
        ({"inputs": np.full((2, 3), np.nan, np.float32), "targets": np.zeros(2, np.int64)}, "is nan"),
        ({"inputs": np.zeros((2, 3), np.float32), "targets": np.array([0, 2])}, "targets"),
    ],
)
def test_data_that_were_not_agreed_on_are_refused(arrays, sentence, tmp_path):
    np.savez(tmp_path / "c.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        TASK.of_client(0, 3, tmp_path / "c.npz")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_refused_in_a_sentence_at_either_side(damage, tmp_path):
    file = tmp_path / "d.npz"
    arrays = {"inputs": np.zeros((2, 3), np.float32), "targets": np.zeros(2, np.int64)}
    np.savez(file, **arrays, **{f"test_{name}": array for name, array in arrays.items()})
    damage(file)
    with pytest.raises(DataError, match=r"does not hold the arrays inputs and targets .* save both"):
        TASK.of_client(0, 3, file)
    with pytest.raises(DataError, match=r"does not hold the arrays test_inputs and test_targets .* save both"):
        TASK.of_server(3, file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none\.npz"):
        TASK.of_client(0, 3, tmp_path / "none.npz")
