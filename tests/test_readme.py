"""Every command and snippet of README, docs and examples runs, and prints what the page shows.

A comment right before a block says what is special about it: ``not run: REASON``; ``continues``, for Python that goes
on where the page's last program ended; ``printed``, for text that the last program prints; ``printed, numbers within
TOLERANCE``, for numbers that vary from run to run. A page that says ``executed as a whole`` is run from its first block
to its last in one folder and one process, with its blocks ``file: NAME`` as files there.
"""

import io
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from privfl.experiment import Experiment
from privfl.study.file import Study
from tests.commands.command_line import privfl
from tests.programs import python

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WHOLE = [page for page in PAGES if "<!-- executed as a whole:" in page.read_text(encoding="utf-8")]
PIECEWISE = [page for page in PAGES if page not in WHOLE]
BLOCK = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^>]*?)|(?P<mark>continues|printed)(?:, numbers within (?P<within>[\d.]+))?"
    r"|file: (?P<file>[^>]*?)) -->\s*)?"
    r"```(?P<language>\w+)\n(?P<body>.*?)```",
    re.S,
)


@dataclass
class Program:
    name: str
    code: str
    printed: list[str] = field(default_factory=list)


def blocks(language):
    found = []
    for page in PIECEWISE:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if match["language"] == language:
                name = f"{page.relative_to(ROOT).as_posix()}-{number}"
                found.append(pytest.param(match["body"], match["reason"], id=name))
    return found


def programs():
    found = []
    for page in PIECEWISE:
        here = []
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if match["mark"] == "printed":
                here[-1].printed.append(match["body"])
            elif match["language"] == "python" and match["mark"] == "continues":
                here[-1].code += match["body"]
            elif match["language"] == "python" and not match["reason"]:
                here.append(Program(f"{page.relative_to(ROOT).as_posix()}-{number}", match["body"]))
        found += here
    return found


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_every_program_runs_and_prints_what_its_page_shows(program, tmp_path):
    (tmp_path / "snippet.py").write_text(program.code, encoding="utf-8")
    done = python("snippet.py", cwd=tmp_path, fresh=program.name.startswith("README"))
    assert done.returncode == 0, done.stderr
    for shown in program.printed:
        assert shown in done.stdout, f"the page shows\n{shown}\nand the program prints\n{done.stdout}"


@pytest.mark.parametrize(("body", "reason"), blocks("toml"))
def test_every_configuration_is_a_valid_experiment(body, reason):
    if reason:
        return
    settings = tomllib.loads(body)
    study = settings if "study" in settings else {**settings, "study": {}}
    for point in Study.from_dict(study).points():
        assert Experiment.from_dict(point.settings).to_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("body", "reason"), blocks("bash"))
def test_every_command_runs(body, reason, copy, record_property, request):
    if reason:
        record_property("not run", reason)
        return
    for line in body.strip().splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "privfl", f"say why this is not run: {line}"
        done = python("-m", "privfl", *arguments, cwd=copy, fresh="README" in request.node.name)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.stem)
def test_a_page_that_is_executed_as_a_whole_runs_in_order_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    known, printed, names = set(sys.modules), "", {"__name__": "page"}
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["file"]:
            (tmp_path / match["file"]).write_text(match["body"], encoding="utf-8")
        elif match["mark"] == "printed":
            shown = occurs(match["body"].strip(), printed, float(match["within"] or 0))
            assert shown, f"the page shows\n{match['body']}\nand there was\n{printed}"
        elif match["language"] == "bash" and not match["reason"]:
            printed = "".join(_command(line, tmp_path) for line in match["body"].strip().splitlines())
        elif match["language"] == "python" and not match["reason"]:
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(match["body"], str(page), "exec"), names)
            printed = out.getvalue()
        else:
            assert match["reason"], f"nobody runs this block of {page.name}: {match['body']}"
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or ".").parent == tmp_path:
            del sys.modules[name]


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def occurs(shown, printed, tolerance):
    """Whether ``printed`` has the text ``shown``, or with a ``tolerance`` its words and numbers near its numbers."""
    if not tolerance:
        return shown in printed
    words = [r"\s+".join(re.escape(word) for word in part.split(" ")) for part in NUMBER.split(shown)]
    for found in re.finditer(f"({NUMBER.pattern})".join(words), printed):
        pairs = zip(NUMBER.findall(shown), found.groups(), strict=True)
        if all(abs(float(there) - float(here)) <= tolerance for there, here in pairs):
            return True
    return False


def test_a_shown_number_may_be_off_by_the_stated_tolerance_and_no_word_may():
    assert occurs("AUC 0.62 of 40", "an AUC 0.70 of 40 clients", 0.1)
    assert not occurs("AUC 0.62 of 40", "an AUC 0.75 of 40 clients", 0.1)
    assert not occurs("AUC 0.62", "TPR 0.62", 0.1)
    assert not occurs("AUC 0.62", "AUC 0.63", 0)


def _command(line, folder):
    """What ``line`` prints; commands of privfl run in this process, which has loaded PyTorch already."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "python":
        done = python(*arguments, cwd=folder)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        assert program == "privfl", line
        code, out, err = privfl(*arguments)
    assert code == 0, f"{line}\n{out}\n{err}"
    return out


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_experiment_runs(path, copy):
    done = python("-m", "privfl", "run", path, "--set", "rounds=3", "--out", "out", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "Privacy statement" in done.stdout
    report = python("-m", "privfl", "report", "out", cwd=copy)
    assert report.returncode == 0, report.stderr


@pytest.mark.slow
@pytest.mark.parametrize("private", [[], ["--private", "3"]], ids=["plain", "private"])
def test_the_fedsampling_example_runs_in_small_form(private, copy, data_folder):
    small = ["--rounds", "2", "--seeds", "1", "--model", "logistic"]
    done = python("examples/fedsampling_fashion.py", "--out", "out", *small, *private, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert (copy / "out" / "accuracy.png").exists()


def test_pictures_that_pages_show_exist():
    for page in PAGES:
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} shows {target}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
