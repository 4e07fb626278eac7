"""Numba is loaded when it pays, kept on disk where it can be, and missed by nobody."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from privfl import compiling

ROOT = Path(__file__).parents[1]


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


ADDED = """
import sys
import numpy as np
from loops import added
from privfl import compiling
for dtype in sys.argv[1:]:
    values, total = np.ones(9, dtype), np.zeros(9, dtype)
    loop = compiling.compiled(added)
    loop(values, total)
    assert (total == 1).all()
    print(sum(loop.stats.cache_hits.values()))
"""


@pytest.fixture
def added(tmp_path):
    """Adds up in processes of their own, for types of numbers; whether what each of them needed was found on disk."""
    source = tmp_path / "loops.py"
    source.write_text("def added(values, total):\n    for i in range(len(total)):\n        total[i] += values[i]\n")

    def run(*dtypes, cache):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / cache), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        command = [sys.executable, "-c", ADDED, *dtypes]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    return run


def files(folder, kind):
    return sorted(folder.rglob(f"*.{kind}"))


def test_a_loop_that_two_processes_kept_under_one_name_is_compiled_again(added, tmp_path):
    assert [added(dtype, cache=dtype) for dtype in ("float32", "float64")] == [[0], [0]]
    (mine,), (other,) = (files(tmp_path / dtype, "nbc") for dtype in ("float32", "float64"))
    shutil.copy(other, mine)
    assert added("float32", cache="float32") == [0]
    assert added("float32", cache="float32") == [1]
    assert added("float64", cache="float64") == [1]


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_of_a_loop_costs_its_time_alone(kind, added, tmp_path):
    added("float32", cache="kept")
    (file,) = files(tmp_path / "kept", kind)
    file.write_bytes(file.read_bytes()[:-20])
    assert added("float32", cache="kept") == [0]
    assert added("float32", cache="kept") == [1]


def test_a_disk_that_takes_nothing_more_stops_no_run(monkeypatch):
    import numpy as np
    from numba.core.caching import IndexDataCacheFile

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "_save_index", full)
    values = np.zeros(3, np.int16)
    loop = compiling.compiled(one_more)
    loop(values)
    assert values.tolist() == [1, 1, 1]
