"""Every form of a dense product is that product, and which one is taken depends on the machine alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from privfl import products
from privfl.products import (
    Forms,
    at_even_places,
    batched,
    descend_,
    evenly,
    filled,
    forms_of,
    input_gradient,
    outputs,
    steady_product,
    sums_over_rows,
    write_weight_gradient,
)

FORMS = {
    "plain": Forms(),
    "weight first": Forms(weight_first=True),
    "weight first, filled up": Forms(weight_first=True, fewest=16),
    "oneDNN": Forms(onednn=True),
    "updates by inputs": Forms(by_inputs=True),
    "narrow first": Forms(narrow_first=True),
    "longer side last": Forms(longer_last=True),
}
INTEL = Forms(weight_first=True, longer_last=True, transformed=1 << 22, fewest=16)
AMD = Forms(by_inputs=True, narrow_first=True, divided=3 << 18)
SHAPES = {"narrow": (10, 7), "wide": (300, 257), "huge": (2100, 512)}


def has_onednn():
    return products._onednn_agrees()


@pytest.fixture(params=FORMS)
def taken(request, monkeypatch):
    if request.param == "oneDNN" and not has_onednn():
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(products, "forms", lambda: FORMS[request.param])


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("steady", [True, False])
def test_products_are_those_of_float64(shape, rows, steady):
    inputs, outs = SHAPES[shape]
    draws = torch.Generator().manual_seed(rows)
    given, weight, bias, back = (
        torch.randn(size, generator=draws, dtype=torch.float64)
        for size in ((rows, inputs), (outs, inputs), (outs,), (rows, outs))
    )
    narrow = [value.float() for value in (given, weight, bias, back)]
    gradient = torch.full_like(narrow[1], torch.nan)
    write_weight_gradient(narrow[3], narrow[0], gradient)
    for found, wanted in (
        (outputs(narrow[0], narrow[1], narrow[2], steady=steady), F.linear(given, weight, bias)),
        (outputs(narrow[0], narrow[1], None, steady=steady), F.linear(given, weight)),
        (input_gradient(narrow[3], narrow[1], steady=steady), back @ weight),
        (gradient, back.T @ given),
        (descend_(narrow[1].clone(), narrow[3], narrow[0], 0.5), weight - 0.5 * back.T @ given),
    ):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("columns", [1, 8, 15, 16, 40])
@pytest.mark.parametrize("rows", [1, 9, 300])
def test_batched_products_are_those_of_float64(columns, rows):
    draws = torch.Generator().manual_seed(rows)
    left, right = (torch.randn(size, generator=draws) for size in ((3, rows, 20), (3, 20, columns)))
    wanted = left.double() @ right.double()
    for one in (left, left.mT.contiguous().mT):
        for other in (right, right.mT.contiguous().mT):
            torch.testing.assert_close(batched(one, other).double(), wanted, rtol=1e-4, atol=1e-4)


def test_only_narrow_batched_products_are_turned(monkeypatch):
    monkeypatch.setattr(products, "forms", lambda: Forms(narrow_first=True))
    left = torch.randn(3, 50, 20)
    assert batched(left, torch.randn(3, 20, 15)).mT.is_contiguous()
    assert batched(left, torch.randn(3, 20, 16)).is_contiguous()
    monkeypatch.setattr(products, "forms", Forms)
    assert batched(left, torch.randn(3, 20, 15)).is_contiguous()


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("columns", [1, 15, 20, 40])
@pytest.mark.parametrize("rows", [1, 9, 300])
def test_sums_over_rows_are_those_of_float64(columns, rows):
    draws = torch.Generator().manual_seed(rows)
    given, back = (torch.randn(size, generator=draws) for size in ((3, rows, 20), (3, rows, columns)))
    wanted = given.double().mT @ back.double()
    for one in (given, given.mT.contiguous().mT):
        for other in (back, back.mT.contiguous().mT):
            torch.testing.assert_close(sums_over_rows(one, other).double(), wanted, rtol=1e-4, atol=1e-4)


def test_the_longer_side_of_sums_over_rows_is_their_columns(monkeypatch):
    monkeypatch.setattr(products, "forms", lambda: Forms(longer_last=True))
    given = torch.randn(3, 50, 20)
    assert sums_over_rows(given, torch.randn(3, 50, 19)).mT.is_contiguous()
    assert sums_over_rows(given, torch.randn(3, 50, 20)).is_contiguous()
    monkeypatch.setattr(products, "forms", Forms)
    assert sums_over_rows(given, torch.randn(3, 50, 19)).is_contiguous()


def test_few_rows_are_filled_up_with_zeros(monkeypatch):
    monkeypatch.setattr(products, "forms", lambda: Forms(fewest=4))
    few, enough = torch.ones(3, 2), torch.ones(4, 2)
    assert filled(few).tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert filled(enough) is enough
    on_another_device = few.to("meta")
    assert filled(on_another_device) is on_another_device
    monkeypatch.setattr(products, "forms", Forms)
    assert filled(few) is few


@pytest.mark.parametrize("shape", ["narrow", "wide"])
def test_a_steady_product_rounds_a_row_alike_in_every_batch(shape, monkeypatch):
    monkeypatch.setattr(products, "forms", lambda: Forms(weight_first=True, fewest=16))
    inputs, outs = SHAPES[shape]
    draws = torch.Generator().manual_seed(0)
    given, weight, back = (torch.randn(size, generator=draws) for size in ((16, inputs), (outs, inputs), (16, outs)))
    for rows in range(1, 16):
        assert torch.equal(
            outputs(given[:rows], weight, None, steady=True), outputs(given, weight, None, steady=True)[:rows]
        )
        assert torch.equal(
            input_gradient(back[:rows], weight, steady=True), input_gradient(back, weight, steady=True)[:rows]
        )


def test_an_update_is_written_where_the_weight_lies(monkeypatch):
    for kind in FORMS.values():
        monkeypatch.setattr(products, "forms", lambda kind=kind: kind)
        flat = torch.zeros(2 * 12)
        descend_(flat[12:].view(3, 4), torch.ones(2, 3), torch.ones(2, 4), 1.0)
        assert flat.tolist() == [0.0] * 12 + [-2.0] * 12


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        ("GenuineIntel", INTEL),
        ("Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", INTEL),
        ("arm", Forms()),
        ("", Forms()),
    ],
)
def test_forms_follow_from_the_maker(maker, expected):
    assert forms_of(maker) == expected
    assert forms_of("AuthenticAMD") == replace(AMD, onednn=has_onednn())


def test_the_maker_is_read_once(monkeypatch):
    products.processor.cache_clear()
    try:
        first = products.processor()
        monkeypatch.setattr(Path, "read_text", lambda self, **_: "vendor_id\t: SomebodyElse\n")
        assert products.processor() == first
        products.processor.cache_clear()
        assert products.processor() == "SomebodyElse"
    finally:
        products.processor.cache_clear()


def test_where_no_list_of_processors_is_the_system_is_asked(monkeypatch):
    def missing(self, **_):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(products.platform, "processor", lambda: "a processor")
    assert products.processor.__wrapped__() == "a processor"


@pytest.mark.parametrize("answer", [None, torch.zeros(3, 32), torch.zeros(1)])
def test_without_oneDNN_or_with_another_one_amd_takes_ordinary_products(monkeypatch, answer):
    def other(*_):
        if answer is None:
            raise AttributeError("there is no such operator")
        return answer

    monkeypatch.setattr(products, "_by_onednn", other)
    assert not products._onednn_agrees.__wrapped__()
    monkeypatch.setattr(products, "_onednn_agrees", lambda: False)
    assert forms_of("AuthenticAMD") == AMD


def test_a_build_that_cannot_say_whether_there_are_units_for_bfloat16_has_none(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert products.has_bfloat16_units.__wrapped__()
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert not products.has_bfloat16_units.__wrapped__()


def test_a_product_has_the_same_bits_every_time():
    given, weight = torch.randn(10, 2100), torch.randn(512, 2100)
    assert torch.equal(outputs(given, weight, None), outputs(given.clone(), weight.clone(), None))


STACKS = [
    (1, 31, 27),
    (1, 12, 54),
    (2, 31, 18),
    (3, 9, 7),
    (6, 501, 9),
    (8, 31, 5),
    (10, 400, 7),
    (33, 9, 33),
    (17, 31, 1),
]
"""Rows, inner numbers and columns of products, few of which take a multiple of 16 bytes."""


def _laid_out(matrix, clients):
    """``matrix`` for each of ``clients``: row by row, column by column, and with a gap between clients."""
    whole = matrix.expand(clients, *matrix.shape).contiguous()
    turned = matrix.T.expand(clients, *matrix.T.shape).contiguous().mT
    apart = torch.cat([whole.flatten(1), torch.zeros(clients, 1)], 1)[:, : matrix.numel()].view(whole.shape)
    return whole, turned, apart


@pytest.mark.parametrize("shape", STACKS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clients_products_are_rounded_alike_wherever_they_stand(shape, dtype):
    if not products.by_place():
        pytest.skip("This processor was not seen to round products by where they stand.")
    rows, inner, columns = shape
    draws = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, generator=draws).to(dtype) for size in ((rows, inner), (inner, columns)))
    for one in _laid_out(left, 7):
        for other in _laid_out(right, 7):
            product = steady_product(one, other)
            assert torch.equal(product, product[:1].expand_as(product))


@pytest.mark.parametrize("shape", STACKS, ids=str)
def test_steady_products_are_those_of_float64(shape, monkeypatch):
    monkeypatch.setattr(products, "by_place", lambda: True)
    rows, inner, columns = shape
    draws = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, generator=draws) for size in ((rows, inner), (inner, columns)))
    wanted = left.double() @ right.double()
    for one in _laid_out(left, 3):
        for other in _laid_out(right, 3):
            for product in steady_product(one, other), batched(one, other, steady=True):
                torch.testing.assert_close(product.double(), wanted.expand(3, rows, columns), rtol=1e-4, atol=1e-4)


def test_what_is_laid_out_evenly_begins_at_multiples_of_64_bytes():
    for stack in (torch.randn(3, 5, 7), torch.randn(3, 33, dtype=torch.float64), torch.randn(3, 1, 2).bfloat16()):
        laid = evenly(stack)
        assert torch.equal(laid, stack)
        assert [one.data_ptr() % 64 for one in laid] == [0, 0, 0]
        assert evenly(laid) is laid
        assert evenly(stack[:1]).data_ptr() == stack.data_ptr()
        assert evenly(stack[1:2]).data_ptr() % 64 == evenly(laid[1:]).data_ptr() % 64 == 0
    on_another_device = torch.empty(3, 5, device="meta")
    assert evenly(on_another_device) is on_another_device


@pytest.mark.parametrize("by_place", [True, False])
def test_stacks_are_moved_only_where_places_round(by_place, monkeypatch):
    monkeypatch.setattr(products, "by_place", lambda: by_place)
    stack = torch.randn(3, 5, 7)[1:]
    assert (at_even_places(stack) is stack) is not by_place
    assert torch.equal(at_even_places(stack), stack)
    assert at_even_places(stack, 1) is stack
    flat = torch.randn(7)[1:]
    assert at_even_places(flat) is flat
