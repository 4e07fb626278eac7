"""How the command line speaks: one style of help, and one sentence for a word that a command does not know."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of typer's own copy of click, or of click before that
_WANTED = {"integer": "a whole number", "float": "a number", "number": "a number", "path": "a path"}


def command_of(app: typer.Typer) -> Any:
    """The command behind ``app``, whose options look alike in the help: a flag shows no type."""
    command = typer.main.get_command(app)
    _tidy(command)
    return command


def _tidy(command: Any) -> None:
    found: Callable[[Any], Any] = command.get_help_option

    def without_type(ctx: Any) -> Any:
        option = found(ctx)
        if option is not None:
            option.metavar, option.help = "", "Show this help."
        return option

    command.get_help_option = without_type
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _tidy(inner)


def shows_help(error: Any) -> bool:
    """Whether the error is a command without a word, which is answered by its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def sentence(error: Any) -> str:
    """What is wrong with the words after ``privfl``, the value, and the mend."""
    return f"{_what(error)}{_where(error)}"


def _what(error: Any) -> str:
    kind, message = type(error).__name__, str(getattr(error, "message", "") or "")
    if kind == "MissingParameter":
        return f"{_named(error.param)} is missing"
    if kind == "NoSuchOption":
        near = sorted(getattr(error, "possibilities", None) or [])
        return f"there is no option {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "BadOptionUsage":
        return f"{error.option_name} has no value; give one"
    if isinstance(error, typer.BadParameter) and getattr(error, "param", None) is not None:
        return f"{_named(error.param)} {_misfit(error, message)}"
    if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"'{extra[1]}' is one word too many"
    if unknown := re.search(r"No such command '(.*?)'\.?(?: Did you mean (.*)\?)?$", message):
        return f"there is no command '{unknown[1]}'" + (f"; did you mean {unknown[2]}?" if unknown[2] else "")
    text = str(error.format_message()).strip().rstrip(".")
    return text[:1].lower() + text[1:]


def _misfit(error: Any, message: str) -> str:
    given = _given(error)
    if choices := re.search(r"(?:Value error, )?'(.*?)' is not one of (.*?)\.?$", message, re.DOTALL):
        valid = re.findall(r"'(.*?)'", choices[2])
        near = get_close_matches(choices[1], valid, n=1)
        return (
            f"is '{choices[1]}'; "
            + (f"did you mean '{near[0]}'? Valid: " if near else "choose from ")
            + ", ".join(valid)
        )
    if wanted := re.search(r"valid (integer|float|number|path)", message):
        shown = re.match(r"'(.*?)' is not", message)
        value = given if given is not None else shown[1] if shown else "something else"
        return f"is '{value}'; give {_WANTED[wanted[1]]}"
    text = message.removeprefix("Value error, ").strip().rstrip(".")
    return f"cannot be used: {text[:1].lower()}{text[1:]}"


def _given(error: Any) -> Any:
    """The value that did not fit, where the error behind this one tells it."""
    cause = error.__cause__ or error.__context__
    problems = cause.errors() if hasattr(cause, "errors") else []
    return problems[0].get("input") if problems else None


def _named(parameter: Any) -> str:
    """``--steps`` for an option, ``FILE`` for an argument."""
    option = next((name for name in getattr(parameter, "opts", ()) if name.startswith("--")), None)
    return option or str(parameter.metavar or parameter.human_readable_name).upper()


def _where(error: Any) -> str:
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "privfl"
    return f"; see `{path} --help`"
