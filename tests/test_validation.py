"""What users set up is refused by its type in one sentence, or brought into the type that is meant."""

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from privfl.validation import Settings, check_choice, check_count, check_number, checked


@dataclass(frozen=True)
class Tool(Settings):
    pass


@dataclass(frozen=True)
class Hammer(Tool):
    weight: float = 1.0


@dataclass(frozen=True)
class Box(Settings):
    tools: tuple[Tool, ...] = ()
    spare: Hammer | None = None
    count: int = 1
    weight: float = 1.0
    colour: Literal["red", "green"] = "red"
    sizes: int | tuple[int, ...] = 1
    corners: tuple[float, float] = (0.0, 1.0)
    make: Callable[[], int] | None = None
    open: bool = False
    name: str = "box"

    def __post_init__(self) -> None:
        check_count("count", self.count)  # never sees what is no number


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"count": 2.0}, "Box's count is 2.0; give a whole number"),
        ({"count": True}, "Box's count is True; give a whole number"),
        ({"count": "3"}, "Box's count is '3'; give a whole number"),
        ({"count": 10**400}, "Box's count is 1000"),
        ({"count": 0}, "count is 0; give a whole number of at least 1"),
        ({"weight": math.nan}, "Box's weight is nan; give a number"),
        ({"weight": None}, "Box's weight is None; give a number"),
        ({"weight": torch.tensor(1.0)}, "Box's weight is a Tensor of shape (); give a number"),
        ({"weight": np.array(1.0)}, "Box's weight is a ndarray of shape (); give a number"),
        ({"weight": np.ones((2, 3))}, "Box's weight is a ndarray of shape (2, 3); give a number"),
        ({"colour": "gren"}, "Box's colour is 'gren'; did you mean 'green'? Valid: 'red' or 'green'"),
        ({"colour": 1}, "Box's colour is 1; choose 'red' or 'green'"),
        ({"sizes": (1, 2.5)}, "Box's sizes holds 2.5; give a whole number"),
        ({"corners": (0.0,)}, "Box's corners is (0.0,); give a list, each entry of it a number"),
        ({"make": 3}, "Box's make is 3; give a function or None"),
        ({"open": 1}, "Box's open is 1; give True or False"),
        ({"name": b"box"}, "Box's name is b'box'; give text in quotes"),
        ({"spare": Hammer}, "Box's spare is the class Hammer; give an object of it, Hammer(…)"),
        ({"spare": "hamer"}, "Box's spare is 'hamer'; give an object, such as Hammer(…)"),
        ({"spare": Box()}, "Box's spare is Box(…); give a Hammer or None"),
        ({"tools": Hammer()}, "Box's tools is Hammer(…); give a list, such as [Hammer(…)]"),
        ({"tools": [Hammer(), Box()]}, "Box's tools holds Box(…); give a Tool"),
    ],
)
def test_what_does_not_fit_its_annotation_is_one_sentence_with_the_mend(values, sentence):
    with pytest.raises(ConfigError) as refusal:
        Box(**values)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


def test_numbers_of_numpy_become_pythons_and_lists_become_tuples():
    box = Box(tools=[Hammer()], count=np.int64(3), weight=np.float32(0.5), sizes=np.array([1, 2]), open=np.True_)
    assert box == Box(tools=(Hammer(),), count=3, weight=0.5, sizes=(1, 2), open=True)
    assert [type(value) for value in (box.count, box.weight, box.sizes[0], box.open)] == [int, float, int, bool]


def test_what_fits_stays_the_same_object():
    tools = (Hammer(2),)
    assert Box(tools=tools).tools is tools
    assert type(Hammer(2).weight) is int  # a whole number is a number


def test_an_object_in_the_wrong_place_is_told_its_own():
    @checked
    def pack(box: Box, *rest: int, hints: dict[str, int] | None = None, **more: Any) -> Box:
        return box

    with pytest.raises(ConfigError, match=r"box is Hammer\(…\); give Box\(tools=\[Hammer\(…\)\]\)"):
        pack(Hammer())
    with pytest.raises(ConfigError, match="hints is 3; give a dictionary or None"):
        pack(Box(), hints=3)
    assert pack(Box(), 1, "two", three=3) == Box()


def test_one_function_is_no_list_of_them():
    @checked
    def run(callbacks: Sequence[Callable[[], int]] = ()) -> int:
        return len(callbacks)

    assert run([len, max]) == 2
    with pytest.raises(ConfigError, match=r"callbacks is the function len; give a list, such as \[the function len\]"):
        run(len)
    with pytest.raises(ConfigError, match=r"callbacks holds 1; give a function"):
        run([1])


def test_classes_that_inherit_are_checked_by_all_their_annotations_even_inside_a_function():
    class Unknowable:
        pass

    @dataclass(frozen=True)
    class Crate(Box):
        lid: "Unknowable | None" = None

    assert Crate(lid=3).lid == 3
    with pytest.raises(ConfigError, match="Crate's count is 'x'"):
        Crate(count="x")
    with pytest.raises(ConfigError, match="Crate's count is 'x'"):
        replace(Crate(), count="x")


def test_ranges_are_one_sentence():
    for refused in (0.0, -1, math.nan, math.inf, "1", True, None):
        with pytest.raises(ConfigError, match=r"rate is .*; give a finite number above 0 and at most 1"):
            check_number("rate", refused, 0, 1, above=True)
    with pytest.raises(ConfigError, match=r"unknown colour 'gren': did you mean 'green'\?"):
        check_choice("colour", "gren", ("red", "green"))


BOUNDS = {
    "Clip's max_norm": pf.Clip,
    "DPSGD's max_grad_norm": lambda value: pf.DPSGD(noise_multiplier=1.0, max_grad_norm=value),
    "AdaptiveClip's initial_norm": pf.AdaptiveClip,
    "NoisyTotal's max_norm": lambda value: pf.NoisyTotal("sums", max_norm=value, noise_multiplier=1.0),
}
MULTIPLIERS = {
    "GaussianNoise's noise_multiplier": pf.GaussianNoise,
    "SkellamNoise's noise_multiplier": pf.SkellamNoise,
    "BandedNoise's noise_multiplier": lambda value: pf.BandedNoise(value, bands=2),
    "TreeNoise's noise_multiplier": pf.TreeNoise,
    "DPSGD's noise_multiplier": lambda value: pf.DPSGD(noise_multiplier=(1.0, value)),
    "NoisyTotal's noise_multiplier": lambda value: pf.NoisyTotal("sums", max_norm=1.0, noise_multiplier=value),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_one_that_float32_keeps_to(name):
    """What is clipped to 1e-43 can be longer by two hundredths, because denormal numbers are so coarse."""
    BOUNDS[name](1e-19)
    for value in (0.0, -1.0, 1e-43, 1e38, math.inf):
        with pytest.raises(pf.ConfigError, match=rf"^{name} is .*; give a number between 1e-\d\d and 1e\+\d\d$"):
            BOUNDS[name](value)


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_a_noise_multiplier_is_one_that_can_be_squared(name):
    for value in (0.0, 1e-12, 1e6):
        MULTIPLIERS[name](value)
    for value in (-1.0, 1e-300, 1e30, math.inf):
        with pytest.raises(pf.ConfigError, match=rf"^{name} is .*; give 0, or a number between 1e-15 and 1e\+09$"):
            MULTIPLIERS[name](value)


class Vanishing(float):
    """A float in name only: whatever it multiplies is gone."""

    def __mul__(self, other):
        return 0.0

    __rmul__ = __mul__


class Turning(tuple):
    """Links that are others each time."""

    def __getitem__(self, place):
        return None

    def __iter__(self):
        return tuple.__iter__(self)


@pytest.mark.parametrize("value", [Vanishing(1.0), np.float64(1.0)])
def test_a_number_given_to_a_setting_becomes_pythons_own(value):
    assert type(pf.GaussianNoise(value).noise_multiplier) is float
    assert pf.GaussianNoise(value).noise_multiplier * 2.0 == 2.0


def test_a_list_of_parts_becomes_a_plain_tuple():
    assert type(pf.Privacy(update=Turning((pf.Clip(1.0),))).update) is tuple


def test_an_object_given_as_another_parameter_is_told_its_own():
    task = pf.load("digits", partition=pf.IID(clients=2), model="logistic")
    with pytest.raises(ConfigError, match=r"^cohort is Bernoulli\(…\), which has a place.* give it as availability=$"):
        pf.simulate(task, pf.FedAvg(), rounds=1, cohort=pf.Bernoulli(0.3))
    with pytest.raises(ConfigError, match=r"give it as cohort=$"):
        pf.simulate(task, pf.FedAvg(), rounds=1, availability=pf.PoissonCohort(0.3))


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (
            pf.GaussianNoise,
            {"target_epsilon": 3.0},
            "of GaussianNoise 'target_epsilon'; choose from at, ",
        ),
        (pf.LocalTraining, {"optimizer": "adam"}, "unknown setting of LocalTraining 'optimizer'"),
        (pf.LocalTraining, {"learning_rte": 1.0}, "'learning_rte': did you mean 'learning_rate'"),
        (Tool, {"size": 1}, "Tool has no settings, and is given 'size'; leave it out"),
        (pf.FedProx, {"muu": 1.0}, "unknown setting of FedProx 'muu': did you mean 'mu'"),
        (pf.IID, {"client": 3}, "unknown setting of IID 'client': did you mean 'clients'"),
    ],
)
def test_a_keyword_that_is_no_setting_is_refused_in_a_sentence(kind, given, told):
    with pytest.raises(ConfigError, match=told):
        kind(**given)


def test_settings_are_copied_and_sent_as_ever():
    noise = pf.GaussianNoise(2.0, at="client")
    assert copy.deepcopy(noise) == pickle.loads(pickle.dumps(noise)) == replace(noise) == noise
