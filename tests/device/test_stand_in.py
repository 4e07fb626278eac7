"""The stand-in keeps CUDA's rules: what would fail there fails here with file and line, and waits are counted."""

import __future__

import inspect
import textwrap
from types import CodeType

import pytest
import torch

from privfl.algorithms import FedEvg
from privfl.engine.dropout import StreamDropout
from privfl.federation.task import Task
from privfl.privacy.clipping.factors import zero_unless
from privfl.privacy.clipping.formed_rules import GroupNormRule
from privfl.privacy.door.client_door import ClientDoor
from tests.device.cases import compare, small_task
from tests.device.stand_in import CUDA, MixedDevices, StandIn, stand_in_cuda


@pytest.fixture
def counts():
    with stand_in_cuda() as counts:
        yield counts


def test_values_are_real_and_come_back_as_they_were(counts):
    values = torch.arange(6.0).view(2, 3)
    there = values.to("cuda")
    assert there.device == CUDA
    assert there.is_cuda
    assert torch.equal((there * 2).cpu(), values * 2)
    assert (counts.bytes_to, counts.bytes_from) == (24, 24)
    assert sum(counts.launches.values()) == 1


@pytest.mark.parametrize(
    "mixed",
    [
        lambda there, here: there + here,
        lambda there, here: torch.mm(there, here),
        lambda there, here: torch.where(there > 0, there, here),
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.copy_(here) + here,
        lambda there, here: here[there.long()],
        lambda there, here: there.masked_fill_(here > 0, 0.0),
        lambda there, here: torch.bmm(there[None], here[None]),
        lambda there, here: torch.rand(2, generator=torch.Generator(), device="cuda"),
        lambda there, here: there.index_put_((torch.tensor([0], device="cuda"),), here[:1]),
    ],
)
def test_tensors_of_two_devices_do_not_meet_and_the_line_is_named(counts, mixed):
    with pytest.raises(MixedDevices, match=r"tests/device/test_stand_in.py:\d+"):
        mixed(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_a_number_from_the_cpu_may_meet_a_tensor_on_the_device(counts):
    there = torch.ones(3, device="cuda")
    assert ((there * torch.tensor(2.0)).sum() - torch.tensor(1.0)).is_cuda
    assert not counts.waits


def test_numpy_does_not_reach_what_lies_on_the_device(counts):
    with pytest.raises(TypeError, match="cuda:0"):
        torch.ones(2, device="cuda").numpy()


@pytest.mark.parametrize(
    "waiting",
    [
        lambda there: float(there.sum()),
        lambda there: bool((there > 0).all()),
        lambda there: there[there > 0],
        lambda there: there.nonzero(),
        lambda there: there.tolist(),
        lambda there: there.cpu(),
        lambda there: torch.tensor([1.0, 2.0], device=there.device),
        lambda there: torch.ones(2).to(there.device),
        lambda there: there[torch.tensor([0, 1])],
        lambda there: torch.where(there > 0, there, torch.tensor(0.0)),
    ],
)
def test_the_host_waits_once_and_the_line_is_named(counts, waiting):
    there = torch.ones(2, device="cuda")
    waiting(there)
    ((place, times),) = counts.waits.items()
    assert times == 1
    assert place.startswith("tests/device/test_stand_in.py:")


def test_pinned_memory_is_copied_without_a_wait(counts):
    torch.ones(2).pin_memory().to("cuda", non_blocking=True)
    torch.empty(2, pin_memory=True).to("cuda", non_blocking=True)
    assert not counts.waits
    torch.ones(2).pin_memory().to("cuda")
    assert sum(counts.waits.values()) == 1


def test_autograd_and_vmap_run_on_the_device(counts):
    weight = torch.ones(3, 2, device="cuda", requires_grad=True)
    inputs = torch.arange(6.0).view(2, 3).to("cuda")
    (gradient,) = torch.autograd.grad((inputs @ weight).square().sum(), weight)
    assert isinstance(gradient, StandIn)
    stacked = torch.func.vmap(lambda one: one @ weight.detach())(inputs[:, None])
    assert torch.equal(stacked.cpu()[:, 0], inputs.cpu() @ torch.ones(3, 2))


@pytest.mark.parametrize(
    ("operation", "kernels"),
    [
        (lambda there: torch.linalg.vector_norm(there, dim=1), 1),
        (lambda there: torch.linalg.vector_norm(there, dim=1, dtype=torch.float64), 2),
        (lambda there: torch.nn.functional.pad(there, (0, 1)), 2),
        (lambda there: there.masked_fill(there > 0, 0.0), 3),
        (lambda there: there.nan_to_num_(), 1),
    ],
)
def test_operations_of_several_kernels_count_as_many(counts, operation, kernels):
    there = torch.ones(2, 3).to("cuda")
    operation(there)
    assert counts.launches.total() == kernels


def test_nothing_is_left_of_it():
    before = torch.Generator, torch.tensor, torch.Tensor.device, torch.Tensor.__dict__.keys()
    with stand_in_cuda():
        assert torch.cuda.is_available()
    assert (torch.Generator, torch.tensor, torch.Tensor.device, torch.Tensor.__dict__.keys()) == before
    assert not torch.cuda.is_available()


PLANTED = [
    (zero_unless, "torch.where(wanted", "torch.where(wanted.cpu()", ("fedavg", "vectorised", True)),
    (GroupNormRule.form, '(2), "bias": back', '(2), "bias": back.cpu()', ("fedavg", "loop", True)),
    (Task.to, ', "targets"', "", ("fedavg", "loop", False)),
    (ClientDoor._gather, "self._targets[places]", "self._targets[places].cpu()", ("fedavg", "loop", False)),
    (StreamDropout.masks, "counts, like.device)", 'counts, torch.device("cpu"))', ("fedavg", "loop", False)),
    (FedEvg.start, "dtype).to(parameters.device)", "dtype)", ("fedevg", "vectorised", False)),
]


def with_bug(function, old, new):
    """The code of ``function`` with ``old`` replaced by ``new``, at the same lines of the same file."""
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{function.__qualname__} does not hold {old!r} once"
    lines = "\n" * (function.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    module = compile(lines + text.replace(old, new), function.__code__.co_filename, "exec", flags)
    return next(code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == function.__name__)


@pytest.mark.parametrize(("function", "old", "new", "case"), PLANTED, ids=lambda one: getattr(one, "__qualname__", ""))
def test_planted_bugs_are_found_with_file_and_line(monkeypatch, function, old, new, case):
    monkeypatch.setattr(function, "__code__", with_bug(function, old, new))
    with pytest.raises(MixedDevices, match=r"privfl/\w+/.*\.py:\d+"):
        compare(small_task(), *case)
