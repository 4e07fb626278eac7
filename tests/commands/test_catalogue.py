"""What ships is what the code says; lists start without torch, and are cut on terminals alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from attacks.registry import ATTACKS, chosen_by
from privfl.commands.catalogue import SHIPPED, Kind, shipped_rows
from privfl.commands.listing import overview
from tests.commands.command_line import privfl

START = """
import contextlib, io, sys
from privfl.cli import main

for line in (
    "account epsilon --noise-multiplier 1 --sample-rate 0.01 --steps 100",
    "account noise --target-epsilon 3 --sample-rate 0.01 --steps 100",
    "account response --epsilon 1 --domain 4 --answers 3",
    "list attacks",
    "list models",
    "schema study",
    "init --study",
    "new attack mine",
):
    sys.argv = ["privfl", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    assert out.getvalue().strip(), line
print(sorted({"torch", "opacus", "matplotlib", "sklearn", "pandas"} & sys.modules.keys()))
"""


def test_shipped_files_are_those_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "scripts"))
    import write_shipped

    shipped = write_shipped.shipped()
    assert {path.name for path in SHIPPED.iterdir()} == set(shipped)
    stale = [name for name, text in shipped.items() if (SHIPPED / name).read_text(encoding="utf-8") != text]
    assert not stale, f"{stale} differ from the code: run python docs/scripts/write_shipped.py"


def test_quick_commands_load_nothing_heavy(tmp_path):
    done = subprocess.run([sys.executable, "-c", START], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("asked", "name", "written"),
    [
        ("UpCNN", "prototype-inversion", "upcnn"),
        ("VAE on features", "prototype-inversion", "vae"),
        ("GRNN", "prototype-inversion", "grnn"),
        ("direct inversion", "prototype-inversion", "direct"),
        ("DLG", "gradient-inversion", "dlg"),
        ("iDLG", "gradient-inversion", "idlg"),
        ("Inverting Gradients", "gradient-inversion", "inverting-gradients"),
        ("gap attack", "loss-threshold", "correct"),
        ("LLG*", "llg", "dummy"),
    ],
)
def test_attacks_are_found_by_what_papers_call_them(asked, name, written):
    code, out, err = privfl("list", "attacks", asked, "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    (choice,) = row["choices"]
    assert (row["name"], choice["value"]) == (name, written)
    assert choice["source"][-4:].isdigit() or "arXiv" in choice["source"]
    assert chosen_by(asked) == f'name = "{name}", {choice["setting"]} = "{written}"'


def test_every_value_of_a_setting_with_choices_is_one_of_them():
    for attack in ATTACKS.values():
        listed: dict[str, set[str]] = {}
        for one in attack.choices:
            listed.setdefault(one.setting, set()).add(one.value)
        for setting, values in listed.items():
            kind = get_type_hints(attack)[setting]
            assert get_origin(kind) is Literal
            assert set(get_args(kind)) == values


def test_a_choice_in_place_of_an_attack_is_told_how_to_write_it(tmp_path):
    (tmp_path / "attack.toml").write_text('run = "none"\n[[attack]]\nname = "iDLG"\n', encoding="utf-8")
    code, _, err = privfl("attack", tmp_path / "attack.toml")
    assert code == 2
    assert 'write [[attack]] with name = "gradient-inversion", method = "idlg"' in err


def test_nothing_is_cut_in_a_pipe():
    for kind in ("attacks", "algorithms", "mechanisms", "models"):
        code, out, _ = privfl("list", kind)
        told = " ".join(out.split())
        assert code == 0
        assert "…" not in out.replace('(run = "…"', "")
        for row in json.loads(privfl("list", kind, "--json")[1]):
            assert " ".join(row["summary"].split()) in told


def test_a_line_fits_a_terminal():
    lines = overview(shipped_rows(Kind.attacks), 110)
    assert max(map(len, lines)) <= 110
    assert any(line.endswith("…") for line in lines)
