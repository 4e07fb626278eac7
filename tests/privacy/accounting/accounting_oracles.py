"""Published and independently computed values, and short names for the events that the tests use."""

import json
from pathlib import Path

import dp_accounting as dp
from dp_accounting import NeighboringRelation

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "accounting.json").read_text())

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL


def rows(section):
    return ORACLES[section]["rows"]


def values(section):
    return ORACLES[section]["values"]


def poisson(rate, noise):
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))


def sampled(rate, noise, relation=ADD_REMOVE):
    return poisson(rate, noise), relation
