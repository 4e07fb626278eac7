"""The kernel of the noise as a GPU's compiler writes it; what it computes is tested beside its use."""

import os
import re
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location

import pytest

from privfl.privacy.noise import fused, triton_release


def test_without_triton_the_module_can_be_read_and_says_so():
    assert find_spec("triton") is not None or not triton_release.THERE


def test_a_triton_that_cannot_be_imported_counts_as_none(monkeypatch, tmp_path):
    """Triton 3.2 asks for setuptools, which an environment of Python 3.12 or uv does not have."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("import setuptools_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    source = spec_from_file_location("read_again", triton_release.__file__)
    again = module_from_spec(source)
    source.loader.exec_module(again)
    assert not again.THERE


WITH_TRITON = [
    pytest.mark.skipif(not triton_release.THERE, reason="Triton is not installed: `pip install triton` brings it"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="in a process that interprets"),
]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=WITH_TRITON) for kind in ("fp32", "fp64")])
def test_for_a_gpu_it_compiles_to_operations_that_round_as_ieee_754_says(kind):
    """Triton compiles without a GPU; what its code holds of float64 is looked at, one name after the other."""
    import triton
    from triton.backends.compiler import GPUTarget

    types = dict.fromkeys(("scales", "inverses", "grids", "cosines"), "*fp64")
    types |= dict.fromkeys(("apart", "size", "half", "programs"), "i32")
    types |= {"rows": f"*{kind}", "keys": "*i32", "starts": "*i64", "LANES": "constexpr"}
    order = {one.name: types[one.name] for one in triton_release._release.params}
    source = triton.compiler.ASTSource(triton_release._release, order, constexprs={"LANES": fused.LANES})
    options = {"num_warps": 4, **triton_release.ROUNDED}
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    used = set(re.findall(r"\b(\w+(?:\.\w+)*\.f64)\b", ptx)) - {"ld.global.f64", "st.global.f64"}
    arithmetic = {
        name for name in used if name.split(".")[0] not in ("mov", "abs", "neg", "max", "setp", "selp", "min")
    }
    rounded = {f"{name}.rn.f64" for name in ("add", "sub", "mul", "div", "sqrt", "cvt")}
    assert arithmetic <= rounded | {"cvt.rn.f32.f64", "cvt.f64"}, "which from float32 is exact"
    assert {"div.rn.f64", "sqrt.rn.f64"} <= arithmetic
    assert "fma" not in ptx
