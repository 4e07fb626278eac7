"""The JSON Schemas take what privfl takes, and refuse typos where they stand."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from privfl.experiment import Experiment
from tests.commands.command_line import privfl

ROOT = Path(__file__).parents[2]
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
KNOWN = {
    *("$schema", "title", "description", "default", "definitions", "type", "properties", "additionalProperties"),
    *("required", "items", "enum", "const", "anyOf", "oneOf", "pattern", "$ref"),
}


def problems(value, schema, root, place=""):
    """What the keywords of draft 7 that the schemas use say against ``value``; an unknown keyword is an error."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        yield from problems(value, found, root, place)
        return
    if "type" in schema:
        right = isinstance(value, TYPES[schema["type"]])
        if not right or (isinstance(value, bool) and schema["type"] != "boolean"):
            yield f"{place} is no {schema['type']}"
            return
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        yield f"{place} is {value!r}"
    if "pattern" in schema and not re.search(schema["pattern"], value if isinstance(value, str) else ""):
        yield f"{place} is {value!r}"
    for word, enough in (("anyOf", lambda n: n >= 1), ("oneOf", lambda n: n == 1)):
        if word in schema:
            fitting = sum(not list(problems(value, one, root, place)) for one in schema[word])
            if not enough(fitting):
                yield f"{place} fits {fitting} of {word}"
    if isinstance(value, dict):
        yield from (f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, item in value.items():
            if name in schema.get("properties", {}):
                yield from problems(item, schema["properties"][name], root, f"{place}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{place}.{name} is unknown"
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(item, schema["items"], root, f"{place}[{number}]")


@pytest.fixture(scope="module")
def schemas():
    found = {kind: json.loads(privfl("schema", kind)[1]) for kind in ("experiment", "study")}
    assert all(one["$schema"] == "http://json-schema.org/draft-07/schema#" for one in found.values())
    return found


def told(settings, schema):
    return list(problems(settings, schema, schema))


FILES = sorted([*(ROOT / "examples").glob("*.toml"), *(ROOT / "examples").glob("*/*.toml")])
FILES += sorted((ROOT / "privfl" / "commands" / "templates").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_example_fits(path, schemas):
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    if "attack" in settings or "audit" in settings:
        return  # files of another kind
    assert told(settings, schemas["study" if "study" in settings else "experiment"]) == []


def test_a_run_as_it_was_resolved_fits(schemas):
    settings = {
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
        "algorithm": {"name": "fedsampling", "samples_per_round": 100},
        "privacy": {
            "training": {"target_epsilon": 3.0, "noise_at": "server"},
            "update": [{"name": "clip", "max_norm": 0.5}],
            "size": {"name": "laplace", "epsilon": 3.0, "bound": 150},
        },
    }
    assert told(tomllib.loads(Experiment.from_dict(settings).to_toml()), schemas["experiment"]) == []


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"round": 3}, ".round is unknown"),
        ({"rounds": "3"}, ".rounds is no integer"),
        ({"algorithm": {"name": "fedavgg"}}, ".algorithm fits 0 of oneOf"),
        ({"algorithm": {"name": "fedavg", "weightings": "size"}}, ".algorithm fits 0 of oneOf"),
        ({"privacy": {"training": {"noise_at": "cliant"}}}, ".privacy.training.noise_at is 'cliant'"),
        ({"dataset": {"name": "digit"}}, ".dataset fits 0 of oneOf"),
        ({"model": {"name": "lstn"}}, ".model.name fits 0 of anyOf"),
        ({"privacy": {"update": [{"name": "clip", "norm": 1.0}]}}, ".privacy.update[0] fits 0 of oneOf"),
    ],
)
def test_a_typo_is_found_where_it_stands(settings, where, schemas):
    assert told(settings, schemas["experiment"]) == [where]
    assert told({**settings, "study": {}}, schemas["study"]) == [where.replace("oneOf", "anyOf")]


def test_parts_of_ones_own_and_their_keys_fit(schemas):
    own = {"algorithm": {"name": "mine:Halved", "share": 0.5}, "task": "mine:task", "loss": {"name": "mine:loss"}}
    assert told(own, schemas["experiment"]) == []


def test_a_study_says_what_its_own_table_takes(schemas):
    table = {"seeds": [1, 2], "epsilon": [3, 1.5], "variant": [{"name": "a", "unset": ["privacy"], "rounds": 3}]}
    table["attack"] = [{"name": "lira", "mode": "offline"}]
    assert told({"study": table}, schemas["study"]) == []
    wrong = {"study": {**table, "seed": 3, "metrics": "x", "attack": [{"name": "lira", "mod": "offline"}]}}
    assert set(told(wrong, schemas["study"])) == {
        ".study.seed is unknown",
        ".study.metrics is unknown",
        ".study.attack[0] fits 0 of oneOf",
    }


def test_keys_say_what_they_mean(schemas):
    training = schemas["experiment"]["properties"]["training"]["properties"]
    assert training["batch_size"]["description"].startswith("samples of a batch")
    assert training["batch_size"]["default"] == 20
