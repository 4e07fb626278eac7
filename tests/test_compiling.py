"""Numba is loaded when it pays, kept on disk where it can be, and missed by nobody."""

import subprocess
import sys

import pytest

from privfl import compiling


def one_more(values):
    for i in range(len(values)):
        values[i] += 1


def one_less(values):
    for i in range(len(values)):
        values[i] -= 1


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(compiling._Forgone, "seconds", 0.0)
    compiling._compiled.cache_clear()
    yield
    compiling._compiled.cache_clear()


def test_it_is_compiled_when_what_it_could_have_saved_is_enough(monkeypatch):
    monkeypatch.setattr(compiling, "ENOUGH", 1.0)
    assert [compiling.once_it_pays(one_more, 0.25) is not None for _ in range(5)] == [False] * 3 + [True] * 2


def test_all_loops_of_a_process_count_together(monkeypatch):
    monkeypatch.setattr(compiling, "ENOUGH", 1.0)
    assert compiling.once_it_pays(one_more, 0.75) is None
    assert compiling.once_it_pays(one_less, 0.75) is not None


def test_each_function_counts_once_when_it_is_compiled():
    assert compiling.compiled_so_far() == 0
    for function, count in ((one_more, 1), (one_more, 1), (one_less, 2)):
        compiling.compiled(function)
        assert compiling.compiled_so_far() == count


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(monkeypatch):
    import numba

    asked = []

    def njit(**settings):
        asked.append(settings.get("cache", False))
        if settings.get("cache"):
            raise RuntimeError("cannot cache function 'one_more': no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compiling.compiled(one_more) is one_more
    assert asked == [True, False]


@pytest.mark.parametrize("there", ["sys.modules['numba'] = None", "import importlib.util"])
def test_without_numba_and_with_one_that_fails_to_load_nothing_is_compiled(there, tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs another NumPy')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {there}; from privfl import compiling; "
        "print(compiling.installed(), compiling.once_it_pays(len, 1e9))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str("None" not in there), "None"]


def doubled(values):
    compiling.wide_vectors()
    for i in range(len(values)):
        values[i] = 2.0 * values[i]


def test_wide_vectors_are_taken_where_the_processor_has_them_and_change_no_number():
    import numba
    import numpy as np
    from llvmlite import binding

    values = np.arange(1000.0)
    compiling._register_wide_vectors()
    loop = numba.njit(doubled)
    loop(values)
    assert np.array_equal(values, 2 * np.arange(1000.0))
    assembly = "".join(loop.inspect_asm().values())
    assert ("zmm" in assembly) == binding.get_host_cpu_features().get("avx512vbmi2", False)


def test_a_function_that_asks_for_wide_vectors_runs_uncompiled_too():
    import numpy as np

    values = np.ones(3)
    doubled(values)
    assert values.tolist() == [2.0, 2.0, 2.0]
