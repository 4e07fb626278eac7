"""One style: a wrong word is one sentence with the mend, flags show no type, results come as JSON where asked."""

import json
import os
from unittest.mock import patch

import pytest
import typer

from privfl.cli import app
from privfl.commands.usage import command_of
from tests.commands.command_line import privfl


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("account epsilon --steps a --noise-multiplier 1", "--steps is 'a'; give a whole number"),
        ("account epsilon --steps 1.5 --noise-multiplier 1", "--steps is '1.5'; give a whole number"),
        ("account epsilon --steps 1 --noise-multiplier b", "--noise-multiplier is 'b'; give a number"),
        ("account epsilon --steps 1", "--noise-multiplier is missing; see `privfl account epsilon --help`"),
        ("account epsilon --steps", "--steps has no value; give one"),
        ("run", "FILE is missing; see `privfl run --help`"),
        ("run x --resum", "there is no option --resum; did you mean --resume?"),
        ("run a b", "'b' is one word too many"),
        ("runn", "there is no command 'runn'; did you mean 'run'?"),
        ("list attack", "KIND is 'attack'; did you mean 'attacks'? Valid: algorithms, mechanisms"),
        ("study table x --format pdf", "--format is 'pdf'; choose from text, latex, csv, markdown, json"),
    ],
)
def test_a_wrong_word_is_one_sentence_with_the_mend(line, sentence):
    code, out, err = privfl(*line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("privfl: ")
    assert sentence in err


def commands(command, path=()):
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, one in inner.items():
        yield from commands(one, (*path, name))


COMMANDS = dict(commands(command_of(app)))
WRITES_ONLY = {("demo",), ("init",), ("new",), ("schema",), *(("deploy", name) for name in ("client", "key", "split"))}
"""Commands that write files, or print what is JSON already."""


def test_every_command_that_prints_results_prints_json():
    options = {path: {name for one in command.params for name in one.opts} for path, command in COMMANDS.items()}
    assert {path for path, names in options.items() if "--json" not in names} == WRITES_ONLY


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_shows_no_type_of_a_flag(path):
    code, out, _ = privfl(*path, "--help")
    assert code == 0
    assert "<bool>" not in out
    assert "Show this help." in out
    for one in COMMANDS[path].params:
        assert one.help, f"{path} does not say what {one.name} is"
        assert one.help.endswith("."), f"{path}: the help of {one.name} is no sentence"


def test_a_group_without_a_command_shows_its_help():
    code, out, _ = privfl("account")
    assert code == 2
    assert "Usage:" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [("privfl stu", "study"), ("privfl list att", "attacks"), ("privfl list algorithms fedn", ""),
     ("privfl list algorithms ditt", "ditto"), ("privfl data info dig", "digits")],
)  # fmt: skip
def test_a_shell_completes_commands_and_names(words, expected):
    asked = {"_PRIVFL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    with patch.dict(os.environ, asked):
        _, out, _ = privfl()
    assert out.split() == expected.split()


def test_a_datasets_entry_comes_as_json():
    told = json.loads(privfl("data", "info", "digits", "--json")[1])
    assert told["name"] == "digits"
    assert told["classes"] == 10
    assert json.loads(privfl("data", "get", "digits", "--json")[1]) == {"name": "digits", "files": []}


def test_the_version_of_typers_errors_is_known():
    assert issubclass(typer.BadParameter, Exception)
    assert {one.__name__ for one in typer.BadParameter.__mro__} >= {"UsageError", "ClickException"}
