"""Whose claim counts, and what may stand in a chain at all."""

from abc import ABCMeta
from dataclasses import dataclass, fields

import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.privacy.mechanisms.claims import CLAIMS, check_mechanism, unstated
from privfl.privacy.mechanisms.mechanism import Cover, Mechanism
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS

SHIPPED = [
    pf.Clip(1.0),
    pf.AdaptiveClip(1.0),
    pf.GaussianNoise(1.0),
    pf.TreeNoise(1.0),
    pf.BandedNoise(1.0),
    pf.DiscreteGaussianNoise(1.0),
    pf.SkellamNoise(1.0),
    pf.SecureSum(),
]


def claim(link):
    return unstated(link, CLAIMS[link.kind])


@pytest.mark.parametrize("link", SHIPPED, ids=lambda link: type(link).__name__)
def test_every_shipped_mechanism_states_its_own_claim(link):
    assert check_mechanism(link) is link
    assert claim(link) == ""
    assert {type(one) for one in SHIPPED} == set(UPDATE_MECHANISMS.values())


def changed(link, **attributes):
    """An object with ``link``'s settings, of a subclass with other ``attributes``."""
    kind = dataclass(frozen=True)(ABCMeta(f"Changed{type(link).__name__}", (type(link),), attributes))
    settings = [field.name for field in fields(link)]
    return kind(**{name: getattr(link, name) for name in settings})


def methods(link):
    """Every method and property of ``link``'s class and its bases, private ones included, but for its claim."""
    bases = [base for base in type(link).__mro__ if base is not object]
    return sorted(
        name
        for name in {name for base in bases for name in vars(base)} - {CLAIMS[link.kind]}
        if not name.startswith(("__", "_abc")) and hasattr(getattr(type(link), name), "__get__")
    )


@pytest.mark.parametrize("link", SHIPPED, ids=lambda link: type(link).__name__)
def test_a_subclass_that_changes_any_method_loses_the_claim_unless_it_states_it(link):
    claimed = CLAIMS[link.kind]
    stating = next(one for one in type(link).__mro__ if claimed in vars(one))
    assert {"at_client", "at_server", "for_run"} <= set(methods(link))
    for name in methods(link):
        same = getattr(type(link), name)
        says = f"changes {name} of {stating.__name__} and states no {claimed} of its own"
        assert says in claim(changed(link, **{name: same}))
        assert claim(changed(link, **{name: same, claimed: getattr(type(link), claimed)})) == ""


@pytest.mark.parametrize(
    ("attributes", "keeps"),
    [
        ({"__doc__": "Says something else."}, True),
        ({"describe": lambda self: "a name that the parent does not use"}, True),
        ({"at": "client", "__annotations__": {"at": str}}, True),
        ({"noise_multiplier": property(lambda self: 0.0)}, False),
        ({"__getattribute__": lambda self, name: object.__getattribute__(self, name)}, False),
        ({"__post_init__": lambda self: None}, False),
        ({"splits_noise": False}, False),
    ],
    ids=["docstring", "another method", "default", "property", "getattribute", "validation", "class attribute"],
)
def test_names_that_bear_on_the_claim_count_and_others_do_not(attributes, keeps):
    kind = ABCMeta("Other", (pf.GaussianNoise,), attributes)
    link = object.__new__(kind)  # a property stands in the way of the settings
    assert (claim(link) == "") is keeps


def test_a_mixin_before_the_shipped_class_counts_too():
    class Mixin:
        def at_server(self, total, noise, round):
            total["update"] *= 0

    @dataclass(frozen=True)
    class Mixed(Mixin, pf.GaussianNoise):
        """Both."""

    assert claim(Mixed(1.0)) == "Mixed changes at_server of GaussianNoise and states no cover of its own"


def test_a_class_of_its_own_without_claim_says_so():
    @dataclass(frozen=True)
    class Own(Mechanism):
        kind = "noise"
        adds_at = "server"

    assert claim(Own()) == "Own states no cover of its own"

    @dataclass(frozen=True)
    class Stated(Own):
        def cover(self, round):
            return Cover.nothing("a test")

    assert claim(Stated()) == ""


def replaced_method():
    clip = pf.Clip(1.0)
    object.__setattr__(clip, "at_client", lambda update, noise, round: update * 1000)
    return clip


@dataclass(frozen=True)
class Kindless(Mechanism):
    """Forgot something."""


@dataclass(frozen=True)
class Nowhere(Mechanism):
    """Adds noise, and does not say where."""

    kind = "noise"


@dataclass(frozen=True)
class LoneShares(Mechanism):
    """Shares without what shares need."""

    kind = "noise"
    adds_at = "share"


@dataclass(frozen=True)
class LoneSum(Mechanism):
    """A sum without a protocol."""

    kind = "sum"


@dataclass(frozen=True)
class Talkative(Mechanism):
    """A transform that sends more than updates."""

    kind = "transform"
    side_values = {"loss": 1.0}  # noqa: RUF012


@dataclass(frozen=True)
class Shadowing(Mechanism):
    """A setting that hides a method."""

    kind = "noise"
    adds_at = "server"

    cover: float = 0.0


class Undecorated(Mechanism):
    """Settings that nothing records."""

    kind = "transform"

    def __init__(self, k):
        object.__setattr__(self, "k", k)


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (pf.Clip, r"holds the class Clip; give an object, Clip\(…\)"),
        ("clip", "'clip', which is no mechanism"),
        (None, "None, which is no mechanism"),
        (object(), "an object of object, which is no mechanism"),
        (Kindless(), "Kindless does not say its kind; set kind to one of bound, transform, noise, sum"),
        (Nowhere(), "kind 'noise' and adds_at is 'nowhere'"),
        (LoneShares(), "derive its class from that"),
        (LoneSum(), "no SecureSum; derive its class from that"),
        (Talkative(), "Talkative sends loss beside updates, which only a bound may"),
        (Shadowing(), "Shadowing has a setting 'cover', which is what mechanisms do"),
        (Undecorated(3), "keeps 'k' outside of its settings"),
        (replaced_method(), "this Clip was changed after it was made, or keeps 'at_client' outside"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Mechanism) else None,
)
def test_what_is_no_mechanism_is_refused_in_one_sentence(link, says):
    with pytest.raises(ConfigError, match=says):
        check_mechanism(link)
