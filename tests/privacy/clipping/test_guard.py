"""Code that runs once for all rows of a batch is refused what would let it see more than one of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._ops import HigherOrderOperator
from torch.func import functional_call, grad
from torch.utils._python_dispatch import TorchDispatchMode

from privfl.errors import ConfigError
from privfl.privacy.clipping.guard import ROW, Made
from privfl.privacy.clipping.row_wise import each_row

ROWS, TARGETS = torch.arange(15.0).reshape(5, 3), torch.zeros(5, dtype=torch.long)
NETWORK, INNER = nn.Linear(3, 2), nn.Linear(3, 1)


@torch.library.custom_op("privfl_guard::seen", mutates_args=())
def seen(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


class Scaled(torch.autograd.Function):
    """Twice the values, by the rule that PyTorch makes; by one of its own if ``own``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return values * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, back):
        return back * 2


class ScaledByOperator(Scaled):
    @staticmethod
    def forward(values):
        return seen(values) * 2


class ScaledByRule(Scaled):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, values):
        return values - values.mean(0), 0


class ScaledByNestedRule(Scaled):
    @staticmethod
    def forward(values):
        return ScaledByRule.apply(values)


class Runs(HigherOrderOperator):
    """Runs a function that it is handed, as PyTorch's operators for control flow do."""

    def __call__(self, work, values):
        return super().__call__(work, values)


RUNS = Runs("runs_others")


class Coarse(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return function(*arguments, **(named or {}))


def of_row(work):
    """``work`` of every row."""
    return each_row(lambda network, inputs, targets: work(inputs), NETWORK, ROWS, TARGETS)


def in_mode(inputs):
    with Coarse():
        return inputs.sum(1)


def caught(function):
    """``function`` of a row, or zero where PyTorch refuses some row."""

    def work(inputs):
        try:
            return function(inputs)
        except Exception:
            return inputs.sum(1) * 0

    return work


def with_hooks(inputs):
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        return inputs.sum(1)


REFUSED = {
    "an operator without a batching rule": (lambda inputs: seen(inputs).sum(1), r"privfl_guard\.seen.* is no operator"),
    "one that is caught": (caught(lambda inputs: seen(inputs).sum(1)), r"had failed: .*privfl_guard\.seen"),
    "one inside of a function of one's own": (lambda inputs: ScaledByOperator.apply(inputs).sum(1), "no operator of"),
    "a vmap rule": (lambda inputs: ScaledByRule.apply(inputs).sum(1), "ScaledByRule brings a vmap rule of its own"),
    "one inside of a function without": (lambda inputs: ScaledByNestedRule.apply(inputs).sum(1), "Rule brings a v"),
    "a dispatch mode": (in_mode, "a dispatch mode of one's own would see more than one row of a batch"),
    "hooks on saved tensors": (with_hooks, "hooks on saved tensors see all rows of a batch at once"),
    "text": (lambda inputs: inputs.sum(1) * len(f"{inputs}"), "a tensor's text would show more than one row"),
    "an error of one row for all": (
        caught(lambda inputs: torch.linalg.cholesky(inputs[:, :1, None]).flatten(0)),
        "code that stands for one row of a batch went on after it had failed: linalg_cholesky fails on some row",
    ),
    "control flow that runs code of one's own": (
        lambda inputs: RUNS(torch.sin, inputs).sum(1),
        "runs_others runs code that could see more than one row of a batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*batching rule.*")
def test_what_could_see_more_than_one_row_is_refused(name):
    work, said = REFUSED[name]
    with pytest.raises(ConfigError, match=said):
        of_row(work)


def shortened(inputs):
    """The sum of squares, as a network's gradient is taken inside of a loss."""
    weights = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
    inner = grad(lambda given: functional_call(INNER, given, inputs).square().sum())(weights)
    return inner["weight"].sum(1)


WORKS = {
    "a function whose rule PyTorch makes": (lambda inputs: Scaled.apply(inputs).sum(1), ROWS.sum(1) * 2),
    "a gradient inside": (shortened, 2 * ROWS.sum(1) * ROWS.sum(1)),
    "iteration": (lambda inputs: torch.stack([one * 3 for one in inputs]).sum(1), ROWS.sum(1) * 3),
    "several answers": (lambda inputs: inputs.max(1).values + inputs.split(1, dim=1)[0][:, 0], ROWS[:, 2] + ROWS[:, 0]),
    "einsum": (lambda inputs: torch.einsum("bi,bi->b", inputs, inputs), ROWS.square().sum(1)),
    "writing in place": (lambda inputs: inputs.clone().mul_(2).index_fill(1, torch.tensor([0]), 1).sum(1),
                         2 * ROWS[:, 1:].sum(1) + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_what_pytorch_does_row_by_row_is_left_alone(name):
    work, expected = WORKS[name]
    assert torch.allclose(of_row(work), expected)


class Bank:
    """Keeps a row by ways that no function of PyTorch is told of."""

    def __init__(self, keep):
        self.keep, self.kept = keep, None

    def __call__(self, inputs):
        found = inputs.sum(1) if self.kept is None else (inputs + self.kept).sum(1)
        self.kept = self.keep(inputs)
        return found


@pytest.mark.parametrize(
    "keep", [nn.Parameter, torch.Tensor, lambda rows: rows.as_subclass(nn.Parameter)], ids=["parameter", "new", "sub"]
)
def test_a_row_that_was_kept_meets_no_row_of_the_next_batch(keep):
    bank = Bank(keep)
    of_row(bank)
    with pytest.raises(ConfigError, match=r"stands for one row of a batch comes from another call, or from nn\.Pa"):
        of_row(bank)


def test_a_guard_leaves_hooks_and_modes_as_they_were():
    with Made(1):
        pass
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: packed.append(one) or one, lambda one: one):
        F.relu(torch.ones(2, requires_grad=True)).sum().backward()
    assert packed
    with Coarse():
        made = Made(1)
        with made.of(None):
            assert torch.ones(2).sum() == 2, "a mode that was there before is somebody else's"
        made.check()
    assert made.alone == ROW
