"""What a network remembers is put back: buffers, attributes, containers, and parameters that were replaced."""

import pytest
import torch
from torch import nn

from privfl.models import build
from privfl.models.module_state import ModuleState


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.frozen = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("absent", None)
        self.last, self.seen, self.named, self.kinds = torch.zeros(3), [1], {"a": 1}, {1}
        self.count, self.counts = 0, [1]


def everything(module):
    return (
        module.total.clone(),
        module.absent,
        (module.last, *module.last.tolist()),
        list(module.seen),
        dict(module.named),
        set(module.kinds),
        module.count,
        module.inner.weight,
        sorted(vars(module)),
        list(module.counts),
        module.frozen.weight.tolist(),
        [one.requires_grad for one in module.parameters()],
    )


WRITES = {
    "a buffer in place": lambda one: one.total.add_(1),
    "a buffer replaced": lambda one: setattr(one, "total", torch.ones(3)),
    "a buffer that was absent": lambda one: setattr(one, "absent", torch.ones(3)),
    "an attribute": lambda one: setattr(one, "last", torch.ones(3)),
    "a tensor in place": lambda one: one.last.add_(1),
    "a number": lambda one: setattr(one, "count", 3),
    "a list": lambda one: one.seen.append(2),
    "a list replaced": lambda one: setattr(one, "seen", None),
    "a list called as one of the engines'": lambda one: one.counts.append(2),
    "a dict": lambda one: one.named.update(a=2, b=3),
    "a set": lambda one: one.kinds.add(2),
    "a frozen parameter in place": lambda one: one.frozen.weight.add_(1),
    "a parameter frozen": lambda one: one.inner.weight.requires_grad_(False),
    "a new attribute": lambda one: setattr(one, "new", torch.ones(3)),
    "a parameter replaced": lambda one: setattr(one.inner, "weight", nn.Parameter(torch.ones(2, 3))),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_was_written_is_put_back_as_often_as_it_is_written(write):
    module = Remembers()
    before, state = everything(module), ModuleState.of(module)
    for _ in range(3):
        WRITES[write](module)
        assert write in ("a list replaced",) or str(everything(module)) != str(before) or "parameter" in write
        state.restore()
        after = everything(module)
        assert torch.equal(after[0], before[0])
        assert after[1] is None
        assert after[2][0] is before[2][0]
        assert after[2][1:] == before[2][1:]
        assert after[3:7] == before[3:7]
        assert after[7] is before[7]
        assert after[8:] == before[8:]


def test_the_values_of_parameters_and_the_mode_are_left_alone():
    module = Remembers()
    state = ModuleState.of(module)
    with torch.no_grad():
        module.inner.weight.fill_(7.0)
    module.eval()
    state.restore()
    assert bool((module.inner.weight == 7).all())
    assert not module.training


def test_networks_of_known_layers_without_buffers_have_nothing_to_restore():
    assert ModuleState.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU())) is None
    assert ModuleState.of(build("tiny-cnn", (1, 12, 12), 10, seed=0)) is None
    assert ModuleState.of(Remembers()) is not None
    assert ModuleState.of(nn.Linear(3, 2), handed_out=True) is not None
