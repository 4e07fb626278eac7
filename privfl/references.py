"""``module:Name``: parts of one's own, written so that another process can import them again."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from privfl.errors import ConfigError, brief

PACKAGE = Path(__file__).resolve().parent
"""Where privfl itself lies."""

_FOUND: dict[int, Any] = {}
"""Classes and functions that are known to be privfl's own, by their ``id``."""
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def reference(thing: Any) -> str:
    """``module:Name`` of a class or function. Not every one can be imported again; :func:`imported` says which."""
    module = "__main__" if thing.__module__ == "__mp_main__" else thing.__module__  # as processes of its own call it
    return f"{module}:{thing.__qualname__}"


def called(part: Any) -> str:
    """The :func:`reference` of a class or function, of what a ``partial`` calls, and of the class of anything else."""
    part = getattr(part, "func", part)
    return reference(part if hasattr(part, "__qualname__") else type(part))


def imported(name: Any, key: str) -> Any:
    """What ``module:Name`` refers to; modules are looked for where Python looks, then in the working directory.

    Raises:
        ConfigError: ``name`` is no such reference, or cannot be imported.
    """
    module, colon, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (module and colon and path) or len(name) > 300:
        raise ConfigError(f"{key} is {brief(repr(name))}; name it as 'module:Name'")
    if module == "__main__":
        raise ConfigError(
            f"{key} is '{name}', defined in the script that was run, which cannot be imported; move it to a module"
        )
    if "<" in path:
        raise ConfigError(
            f"{key} is '{name}', a lambda or defined inside a function, which cannot be imported; define it with a "
            "name at the top of a module"
        )
    if path.endswith("()"):
        raise ConfigError(f"{key} is '{name}', an object that cannot be written down; make its class a dataclass")
    if (folder := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # last, so that nothing there hides what is installed
    try:
        found: Any = import_module(module)
    except Exception as error:  # a module of the user's own may raise anything
        raise ConfigError(
            f"{key} is '{name}', and importing the module {module} fails ({type(error).__name__}: {error}); install it "
            "or start from its folder"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{key} is '{name}', but {module} has no '{path}'; check the name")
        found = getattr(found, part)
    return found


def references_in(settings: Any) -> Iterator[str]:
    """Every text in ``settings``, tables and lists of them, that has the form ``module:Name``.

    >>> list(references_in({"task": "my_data:hospitals", "privacy": {"update": [{"name": "mine:Clip"}]}, "rounds": 3}))
    ['my_data:hospitals', 'mine:Clip']
    """
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for item in settings:
            yield from references_in(item)
    elif isinstance(settings, str) and _REFERENCE.fullmatch(settings):
        yield settings


def shipped(thing: Callable[..., Any]) -> bool:
    """Whether a class or function is privfl's own: written in one of its files, and found there under its name.

    What was found once stays so, and is told by being the same object: a class may say that it equals another.
    """
    if _FOUND.get(id(thing)) is thing:
        return True
    found = defined_in(thing, PACKAGE)
    if found:
        _FOUND[id(thing)] = thing
    return found


def of_privfl(part: Any) -> bool:
    """Whether ``part`` is a class or function of privfl's own, or an object of such a class."""
    return shipped(part if isinstance(part, type) or hasattr(part, "__qualname__") else type(part))


def defined_in(thing: Callable[..., Any], folder: Path) -> bool:
    """Whether a class or function is what a module in ``folder`` has under its very name."""
    found: Any = sys.modules.get(getattr(thing, "__module__", ""))
    file = getattr(found, "__file__", None)
    if not isinstance(file, str) or not is_inside(file, folder):
        return False
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


@cache
def is_inside(file: str, folder: Path) -> bool:
    """Whether the path ``file`` lies in ``folder``."""
    return Path(file).resolve().is_relative_to(folder)
