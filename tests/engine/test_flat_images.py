"""One pass over flattened images does what the steps do that it stands for, bit by bit, and leaves the rest to them."""

import pytest
import torch
from torch import nn

from privfl import compiling
from privfl.engine.dropout import StreamDropout
from privfl.engine.flat_images import FlatImages, Kept, flat_images
from privfl.engine.sequence_steps import Dropped, Flattened, Linear, Rectified
from privfl.models.layouts import INNERMOST
from privfl.privacy.noise.source import NoiseStream


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch):
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)


def dropped(probability=0.5, present=None):
    layer = StreamDropout(probability, None)
    layer.generator, layer.present = NoiseStream(bytes(range(32))), present
    return Dropped(layer)


def images(shape, dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values[0, 0] = 0.0
    last = values.view(-1)[1:][-3:]
    last.copy_(torch.tensor([torch.nan, torch.inf, -torch.inf])[: len(last)])
    return values.to(dtype).contiguous(memory_format=INNERMOST)


def one_by_one(steps, given, back):
    kept = []
    for step in steps:
        given, needed = step.forward(given)
        kept.append(needed)
    for step, needed in zip(reversed(steps), reversed(kept), strict=True):
        back = step.backward(back.clone(), needed)
    return given, back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(3, 16, 5, 4), (1, 64, 12, 12), (2, 3, 1, 1), (2, 1, 3, 3), (2, 1, 1, 1), (10, 7, 2, 9)]
)
@pytest.mark.parametrize("rectifies", [False, True])
@pytest.mark.parametrize("probability", [None, 0.0, 0.25, 0.3, 1.0])
def test_it_has_the_bits_of_the_steps_forward_and_back(dtype, shape, rectifies, probability):
    def steps():
        first = [Rectified()] if rectifies else []
        return [*first, Flattened(), *([] if probability is None else [dropped(probability)])]

    given = images(shape, dtype)
    whole = FlatImages(steps())
    out, kept = whole.forward(given)
    assert isinstance(kept, Kept) == (dtype == torch.float32 or probability not in (None, 0.0))
    back = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    back[0, :2] = torch.tensor([torch.nan, -torch.inf])[: back.shape[1]]
    found = whole.backward(back.clone(), kept)
    expected, expected_back = one_by_one(steps(), images(shape, dtype), back)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found, expected_back, rtol=0, atol=0, equal_nan=True)
    assert found.is_contiguous(memory_format=INNERMOST)


def test_padding_is_kept_as_the_steps_keep_it():
    given, steps = images((4, 8, 3, 3), torch.float32), [Rectified(), Flattened(), dropped(present=(3, 4))]
    out, kept = FlatImages(steps).forward(given)
    expected, _ = one_by_one([Rectified(), Flattened(), dropped(present=(3, 4))], given.clone(), torch.zeros(4, 72))
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    assert (kept.factors[3] == 2).all()


@pytest.mark.parametrize("why", ["not compiled", "outermost channels", "float64"])
def test_what_it_does_not_serve_goes_step_by_step(why, monkeypatch):
    given = images((3, 16, 5, 4), torch.float64 if why == "float64" else torch.float32)
    if why == "not compiled":
        monkeypatch.setattr(compiling, "ENOUGH", float("inf"))
    elif why == "outermost channels":
        given = given.contiguous()
    steps = [Rectified(), Flattened()]
    out, kept = FlatImages(steps).forward(given)
    assert isinstance(kept, list)
    back = torch.randn(out.shape, dtype=out.dtype)
    found = FlatImages(steps).backward(back.clone(), kept)
    expected, expected_back = one_by_one([Rectified(), Flattened()], given, back)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found, expected_back, rtol=0, atol=0, equal_nan=True)


def test_only_what_stands_beside_flattening_is_taken():
    linear, first, second = Linear(nn.Linear(2, 2)), Rectified(), Rectified()
    last, between = dropped(), Flattened()
    found = flat_images([first, linear, second, between, last, linear])
    assert [type(step) for step in found] == [Rectified, Linear, FlatImages, Linear]
    assert found[2].steps == [second, between, last]
    assert flat_images([linear, first]) == [linear, first]
    assert [type(step) for step in flat_images([linear, between, first])] == [Linear, FlatImages, Rectified]


def test_an_empty_batch_stays_empty():
    out, _ = FlatImages([Rectified(), Flattened(), dropped()]).forward(
        torch.empty(0, 8, 3, 3).contiguous(memory_format=INNERMOST)
    )
    assert out.shape == (0, 72)


def test_in_evaluation_nothing_is_dropped():
    given, drop = images((2, 8, 3, 3), torch.float32), dropped()
    drop.layer.eval()
    out, kept = FlatImages([Flattened(), drop]).forward(given)
    assert kept.factors is None
    torch.testing.assert_close(out, given.flatten(1), rtol=0, atol=0, equal_nan=True)
