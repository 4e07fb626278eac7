"""dp_accounting is imported without the parts of SciPy that few need, and nobody can tell but by the clock."""

import sys

import pytest
from scipy import special, stats

from privfl import late_scipy
from tests.programs import python

VALUES = """
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
gaussian = pld.from_gaussian_mechanism(1.0, sampling_prob=0.01).self_compose(50)
laplace = pld.from_laplace_mechanism(2.0).self_compose(3)
print(gaussian.get_epsilon_for_delta(1e-5), laplace.get_epsilon_for_delta(1e-5), get_epsilon_gaussian(1.0, 1e-5))
"""


@pytest.fixture(scope="module")
def late():
    """What a process says that imports everything late, and then needs it."""
    loaded = f"print([name for name in {late_scipy.LATE} if name in sys.modules])\n"
    after = "import dp_accounting, inspect, scipy\nprint('get_epsilon' in inspect.getsource(dp_accounting))\n"
    after += "print(scipy.stats.norm.cdf(0.0), scipy.signal.lfilter([1.0], [1.0], [2.0]))\n"
    text = f"import sys\nimport privfl.simulation.simulation\n{loaded}{VALUES}{after}"
    return python("-c", text, fresh=True).stdout.splitlines()


def test_a_simulation_can_begin_without_them(late):
    assert late[0] == "[]"


def test_the_accountants_values_are_those_of_a_process_that_imported_scipy_first(late):
    early = f"import scipy.fft, scipy.optimize, scipy.signal, scipy.stats{VALUES}"
    assert late[1] == python("-c", early, fresh=True).stdout.strip()


def test_others_get_the_modules_themselves_and_the_library_keeps_its_source(late):
    assert late[2:] == ["True", "0.5 [2.]"]


def test_a_placeholder_stands_only_for_what_nobody_has_imported(monkeypatch):
    monkeypatch.setattr(late_scipy, "LATE", ("scipy.stats", "colorsys"))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with late_scipy.placeholders():
        assert sys.modules["scipy.stats"] is stats
        held = sys.modules["colorsys"]
        part = held.rgb_to_hsv
        assert isinstance(held, late_scipy.Placeholder)
        assert isinstance(part, late_scipy.Part)
        with pytest.raises(AttributeError, match=r"colorsys.*__path__"):
            _ = held.__path__
    assert "colorsys" not in sys.modules
    assert part(1, 1, 1) == (0.0, 0.0, 1)
    assert part.__name__ == "rgb_to_hsv"
    assert held.ONE_THIRD == 1 / 3


def test_a_part_answers_like_what_it_stands_for():
    assert late_scipy.Part("scipy.stats", "norm").cdf(0.5) == pytest.approx(special.ndtr(0.5))
    with pytest.raises(AttributeError):
        _ = late_scipy.Part("scipy.stats", "norm").no_such_thing


def test_it_is_installed_once_and_not_where_the_library_is_loaded(monkeypatch):
    before = list(sys.meta_path)
    late_scipy.install()
    assert sys.meta_path == before
    monkeypatch.setattr(sys, "meta_path", list(before))
    monkeypatch.delitem(sys.modules, "dp_accounting")
    late_scipy.install()
    late_scipy.install()
    assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path[0].find_spec("another", None) is None
