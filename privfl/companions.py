"""The packages ``attacks`` and ``audits``, which are installed beside privfl and have common names."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from privfl.errors import ConfigError


def companion(module: str) -> ModuleType:
    """Import ``module``, which is ``attacks``, ``audits``, or a module of one of them.

    Raises:
        ConfigError: something else of that name, such as a file ``attacks.py`` in the working directory, comes first.
            It is not run.
    """
    name = module.partition(".")[0]
    spec = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
    own, found = Path(__file__).parents[1] / name / "__init__.py", spec.origin if spec else None
    if found is None or Path(found).resolve() != own.resolve():
        raise ConfigError(
            f"Python finds {found or 'nothing that it could import'} where privfl's package '{name}' should be; rename "
            "it, or start Python in another folder"
        )
    return import_module(module)
