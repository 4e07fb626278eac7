"""What a run on Ray must be for its claims to hold: one that can be distributed, and the same at every worker.

A worker imports the modules of the user's own parts itself. What it finds there need not be what the driver found, on
which claims rest: another state of a file, or a module in which the driver's program has changed something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from privfl.errors import ConfigError
from privfl.simulation.plan import Plan
from privfl.simulation.ray_cluster import ray_module, unsendable
from privfl.simulation.ray_worker import Built, code_of, computes

MOST_BYTES = 1 << 24
"""A part of a run that is larger than this when it is sent to workers carries data, which is refused."""


def refuse(plan: Plan) -> None:
    """Refuse a run that cannot be distributed, before any work.

    Raises:
        ConfigError: naming the part that cannot, with the mend.
    """
    recipe, algorithm = plan.task.recipe, plan.algorithm
    other = "use engine = 'loop'"
    if plan.task.inputs.device.type != "cpu":
        raise ConfigError(
            f"engine = 'ray' computes on CPUs, and device is '{plan.task.inputs.device}'; set device = 'cpu'"
        )
    if algorithm.pools_data:
        raise ConfigError(f"{algorithm.name} trains on all data as one, which nobody can share; {other}")
    if plan.channel.secure is not None:
        raise ConfigError(
            f"SecureSum adds up what each client encodes for one server, and Ray's workers send partial sums; {other}"
        )
    if "server" in plan.record:
        raise ConfigError(
            "record = 'server' keeps every upload, and Ray's workers send partial sums; record 'public' or nobody, or "
            f"{other}"
        )
    if recipe is None or (recipe.dataset is None and recipe.arrays is None and recipe.task is None):
        raise ConfigError(
            "the data of this run were handed over in Python, and Ray's workers have to load them themselves; name a "
            "dataset or a file (arrays), or a function that returns the task (task = 'module:function')"
        )
    ray = ray_module(plan.execution.address)
    parts = {
        algorithm.name: replace(algorithm),
        "the training": plan.training,
        "the privacy mechanisms": plan.channel.usual,
        "the description of the data": recipe,
    }
    for what, part in parts.items():
        if problem := unsendable(ray, what, part, MOST_BYTES):
            raise ConfigError(problem)
    for what, one in code_of(plan.task, replace(algorithm), plan.training, plan.channel.usual).items():
        if one.unknown:
            kinds = ", ".join(sorted(kind.replace(":", ".") for kind in one.unknown))
            raise ConfigError(
                f"the {what} of this run reaches {kinds}, whose content cannot be told, so that nobody knows whether "
                f"Ray's workers would compute the same; leave it out, or {other}"
            )


def check_same_kind(name: str, about: Mapping[str, str]) -> None:
    """Refuse the worker called ``name`` if what computes there, which is what it says ``about`` itself, differs.

    Raises:
        ConfigError: it does.
    """
    for what, value in computes().items():
        if about[what] != value:
            raise ConfigError(
                f"{name} has another {what} than this process ({about[what][:20]}, not {value[:20]}), and would "
                "come to other numbers; let every node have the same"
            )


def check_same_run(name: str, there: Built, here: Built) -> None:
    """Refuse the worker called ``name`` if what it has built is not what this process has.

    Raises:
        ConfigError: its data, or code that clients execute, differs.
    """
    for what, value in here.described.items():
        if there.described.get(what) != value:
            raise ConfigError(
                f"{name} has other data than this process: {what} is {there.described.get(what)!r} there and "
                f"{value!r} here; give every node the same files, or name a function of the seed alone"
            )
    for what, digest in here.code.items():
        if there.code[what] != digest:
            raise ConfigError(
                f"{name} has not the {what} of this process: a module of one's own has another content there, or "
                "this process has changed something in it since it was imported; give every node the same files, "
                "and pass as an argument what a program sets"
            )
