"""The files that are mutated, and one mutation of each: as a parsed table and as text; see ``mutated_files.py``."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from privfl.simulation.settings import registries

COMMON = """
rounds = 2
engine = "loop"
workers = 1
device = "cpu"
[dataset]
name = "digits"
[partition]
name = "iid"
clients = 8
[model]
name = "logistic"
"""
EXPERIMENTS = (
    COMMON + '[algorithm]\nname = "fedavg"\n[training]\nlearning_rate = 0.1\nbatch_size = 32\n',
    COMMON
    + """[algorithm]
name = "fedsampling"
samples_per_round = 300
[privacy]
max_size_error = 99.0
[privacy.training]
noise_multiplier = 1.0
noise_at = "server"
max_grad_norm = 1.0
[privacy.size]
name = "laplace"
epsilon = 3.0
bound = 400
[cohort]
name = "fixed"
size = 4
""",
    COMMON
    + """[algorithm]
name = "fedavg"
weighting = "uniform"
[privacy]
target_delta = 1e-5
noise_key = 7
[[privacy.update]]
name = "adaptive-clip"
initial_norm = 1.0
count_noise = 5.0
[[privacy.update]]
name = "gaussian-noise"
noise_multiplier = 1.0
[privacy.budget]
epsilon = 50.0
unit = "client"
observer = "public"
[cohort]
name = "poisson"
probability = 0.5
""",
    COMMON.replace('name = "iid"', 'name = "dirichlet"\nalpha = 0.5')
    + """[algorithm]
name = "ditto"
[local_tests]
fraction = 0.2
[label_noise]
name = "symmetric"
rate = 0.1
[availability]
name = "bernoulli"
probability = 0.8
""",
)
ATTACK = """
run = "{run}"
seed = 0
public_share = 0.5
candidates = 50
[[attack]]
name = "label-counts"
[[attack]]
name = "loss-threshold"
"""
AUDIT = """
experiment = "{experiment}"
confidence = 0.9
seed = 0
[[audit]]
name = "size-response"
"""
STUDY = (
    COMMON
    + """[training]
learning_rate = 0.1
batch_size = 32
[privacy.training]
sample_rate = 0.25
[study]
title = "What privacy costs"
seeds = 2
epsilon = [inf, 8]
metric = "accuracy"
[[study.variant]]
name = "FedAvg"
algorithm = {name = "fedavg", weighting = "uniform"}
[[study.variant]]
name = "Ditto"
algorithm = {name = "ditto", weighting = "uniform"}
""",
    "record = true\n"
    + COMMON
    + """[algorithm]
name = "fedavg"
[training]
learning_rate = 0.1
[study]
seeds = [3, 5]
confidence = 0.9
test = "sign"
better = "higher"
candidates = 40
[study.grid]
training.batch_size = [16, 32]
[study.zip]
partition.clients = [4, 8]
rounds = [1, 2]
[[study.attack]]
name = "label-counts"
""",
)
ODD: tuple[Any, ...] = (
    *(True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**18, 10**30, -(10**18), 2**63, 2**64),
    *(0.0, -0.0, 0.5, -0.5, 1e-320, 1e-5, 1e308, -1e308, 3.5e38, float("inf"), float("-inf"), float("nan")),
    *("", " ", "a\0b", "x" * 5000, "auto", "cpu", "cuda:99", "meta", "none", "é\u2028", "../..", "/", "os:getcwd"),
    *("module:Name", "privfl:FedAvg", ":", "a:b:c", "fedavg", "clip", "1", "1e9", "{}"),
    *([], [1], [0.1, 0.2], ["a"], [[1]], [{}], [{"name": "clip"}], [None], list(range(300))),
    *({}, {"name": "fedavg"}, {"name": 1}, {"a": {"b": 1}}, {"name": "clip", "max_norm": 1.0}),
)
STORABLE = [one for one in ODD if isinstance(one, str | float) or (isinstance(one, int) and abs(one) < 2**63)]
"""Those of them that a cell of a table can hold."""
PIECES = (
    *(
        "\0",
        "\n",
        "\r",
        '"',
        "'",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        ",",
        "#",
        "\\",
        '"""',
        "\ufeff",
        "\u2028",
        "é",
        "ε",
        "٣",
    ),
    *("9" * 5000, "1e999", "nan", "inf", "true", "0x", "1979-05-27", "\x1b[2J", "[" * 2000),
)
NAMES = [name for known in registries().values() for name in known]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside ``value``."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated_table(table: dict[str, Any], die: random.Random) -> dict[str, Any]:
    """``table`` with one to three values replaced, removed, renamed, moved or wrapped."""
    table = copy.deepcopy(table)
    for _ in range(die.choice((1, 1, 2, 3))):
        found = list(places(table))
        if not found:
            return table
        *way, key = die.choice(found)
        holder: Any = table
        for step in way:
            holder = holder[step]
        act = die.choice(("replace",) * 6 + ("remove", "rename", "wrap", "scale", "swap", "double"))
        if act == "replace":
            alike = [odd for odd in ODD if type(odd) is type(holder[key])]
            if isinstance(holder[key], str):
                alike += NAMES
            holder[key] = copy.deepcopy(die.choice(alike if alike and die.random() < 0.75 else ODD))
        elif act == "remove":
            del holder[key]
        elif act == "rename" and isinstance(holder, dict):
            holder[die.choice((f"{key}s", str(key)[:-1], "name", "x" * 300, "a.b", ""))] = holder.pop(key)
        elif act == "wrap":
            holder[key] = die.choice(([holder[key]], {"name": holder[key]}, [holder[key]] * 3))
        elif act == "scale" and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = die.choice((-holder[key], holder[key] * 10**9, holder[key] / 1e9, str(holder[key])))
        elif act == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            *other_way, other = die.choice(found)
            source: Any = table
            try:
                for step in other_way:
                    source = source[step]
                holder[key] = copy.deepcopy(source[other])
            except (KeyError, IndexError, TypeError):
                continue
    return table


def mutated_text(text: str, die: random.Random) -> bytes:
    """``text`` with a few characters, pieces or lines changed, as bytes that may be no UTF-8."""
    for _ in range(die.choice((1, 1, 2, 4))):
        at, other = sorted((die.randrange(len(text) + 1), die.randrange(len(text) + 1)))
        lines = text.split("\n")
        act = die.randrange(11)
        if act == 0:
            text = text[:at] + text[min(other, at + die.choice((1, 3, 30))) :]
        elif act == 1:
            text = text[:at] + die.choice(PIECES) + text[at:]
        elif act == 2:
            text = text[:at] + chr(die.randrange(32, 127)) + text[at + 1 :]
        elif act == 3:
            text = text[:at]
        elif act == 4:
            lines.insert(die.randrange(len(lines)), die.choice(lines))
            text = "\n".join(lines)
        elif act == 5:
            die.shuffle(lines)
            text = "\n".join(lines)
        elif act == 6:
            text = text[:at] + text[at:other].upper() + text[other:]
        elif act > 7 and (digits := [place for place, one in enumerate(text) if one.isdigit()]):
            place = die.choice(digits)
            text = text[:place] + die.choice(("0", "1", "9", "99", "-", "e", ".", "_1", "00", "e9")) + text[place + 1 :]
        else:
            text = text[:at] + text[at : at + 40] * die.choice((2, 50)) + text[at:]
    content = text.encode("utf-8", "surrogatepass")
    if die.random() < 0.1:
        at = die.randrange(len(content) + 1)
        content = content[:at] + bytes([die.randrange(256)]) + content[at + 1 :]
    return content
