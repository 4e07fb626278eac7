"""The house's own rules: who may know whom, and what no file may hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import privfl
from privfl.data.catalog import datasets
from privfl.models import models

ROOT = Path(__file__).parents[1]
PACKAGES = ("privfl", "attacks", "audits")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SCRIPTS = sorted(path for folder in ("examples", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))

FLOORS: tuple[set[str], ...] = (
    {
        "privfl.compiling",
        "privfl.devices",
        "privfl.errors",
        "privfl.late_scipy",
        "privfl.opacus_parts",
        "privfl.plain_text",
        "privfl.products",
        "privfl.randomness",
    },
    {"privfl.validation", "privfl.references", "privfl.files", "privfl.plain_tensors"},
    {"privfl.schema", "privfl.lock"},
    {
        "privfl.models",
        "privfl.metrics",
        "privfl.data",
        "privfl.privacy.accounting",
        "privfl.privacy.loss",
        "privfl.privacy.noise",
        "privfl.privacy.norms",
    },
    {"privfl.data.partitions", "privfl.privacy.sizes", "privfl.privacy.secagg"},
    {"privfl.privacy.clipping", "privfl.privacy.mechanisms"},
    {"privfl.privacy.door"},
    {"privfl.privacy.channel"},
    {"privfl.privacy.settings", "privfl.federation"},
    {"privfl.algorithms"},
    {
        "privfl.algorithms.fair",
        "privfl.algorithms.generative",
        "privfl.algorithms.label_skew",
        "privfl.algorithms.personal",
    },
    {"privfl.algorithms.__init__"},
    {"privfl.engine"},
    {"privfl.simulation"},
    {
        "privfl.experiment",
        "privfl.opacus_engine",
        "privfl.trackers",
        "attacks.auxiliary",
        "attacks.crafted_broadcast",
        "attacks.metrics",
        "attacks.observations",
    },
    {"privfl.deploy", "privfl.study", "attacks.result", "audits.bounds"},
    {"attacks.attack", "attacks.images", "audits.result"},
    {"attacks.gradient_inversion", "attacks.labels", "attacks.membership", "audits.canaries", "audits.mechanisms"},
    {"attacks.detection", "attacks.property_inference", "attacks.prototypes", "attacks.sizes", "attacks.words"},
    {"attacks.word_order"},
    {"attacks.judge", "attacks.registry", "audits.registry", "audits.fuzz", "audits.protocol"},
    {"attacks.battery", "privfl.companions"},
    {"privfl.commands"},
    {"privfl.cli"},
    {"privfl.__main__"},
)
"""The rooms from the ground up: folders, and files that lie between folders. A room uses rooms on floors below it,
never one on its own floor, so no wing of the algorithms knows another one. A new room gets its place here."""

FRONT_DOORS = {"privfl.__init__", "attacks.__init__", "audits.__init__"}
"""What users import from. They look names up when asked, so they lie on no floor, and nobody in the house uses them."""
COMMAND_LINE = {"privfl.cli", "privfl.commands", "privfl.__main__"}

TESTED_ELSEWHERE = {
    "privfl/algorithms": "base fedavg fedprox references",
    "privfl/algorithms/fair": "aaggff_sums loss_survey",
    "privfl/algorithms/label_skew": "bsm_fedavg",
    "privfl": "cli devices errors",
    "privfl/commands": "account data demo_sentences deploy examine listing",
    "privfl/data": "berka berka_tables checksums entries entry files further_entries heart holdout tabular wfdb",
    "privfl/data/partitions": "base given pathological report simple skewed",
    "privfl/deploy": "kits secure",
    "privfl/engine": "memory secure_aggregation",
    "privfl/federation": "context",
    "privfl/metrics": "classification",
    "privfl/models": "base convolutional dense recurrent residual text",
    "privfl/privacy/accounting": "grouping printed release",
    "privfl/privacy/channel": "chain secure_encoding",
    "privfl/privacy/clipping": "formed_rules layer_rules rule stacked",
    "privfl/privacy/door": "cohort_door contract precision step_draws",
    "privfl/privacy/mechanisms": "gaussian secure_sum",
    "privfl/privacy/secagg": "bodies client cohort errors ideal recovery relay rules server standing",
    "privfl/privacy/sizes": "estimate",
    "privfl/simulation": "archive checkpoint noise_key remote_engine",
    "privfl/study": "attacks clients cluster display execution findings locks members opening record report "
    "shown summary workers",
    "attacks": "attack auxiliary judge registry",
    "attacks/images": "nulls result",
    "attacks/labels": "calibration_batches",
    "attacks/membership": "game result",
    "attacks/metrics": "measure perceptual",
    "audits/bounds": "output_events",
    "audits/canaries": "alignment claimed_statistic views",
    "audits/fuzz": "campaign charged drawing exact experiment found instruments noisy noisy_campaign own_parts "
    "report shrink streams tape worlds",
    "audits/protocol": "attacks knowledge mailboxes",
    "audits": "registry",
}
"""Modules without a test file of their name; tests of neighbours or whole runs cover them. Nothing is added."""

KEBAB_CASE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SEEDED = {"Generator", "BitGenerator", "SeedSequence", "Philox", "default_rng"}
"""What of ``numpy.random`` does not touch its hidden global generator."""
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
"""Functions of torch that draw from its global generator unless they are given one."""
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
RESTRICTED_UNPICKLER = "privfl/data/images.py"
"""CIFAR-10's official Python archive is a pickle: a reader that can build arrays of numbers and nothing else."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), relative(path))


def dotted_path(path: Path) -> str:
    """``privfl/data/files.py`` → ``privfl.data.files``."""
    return relative(path).removesuffix(".py").replace("/", ".")


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(f"{place}.")


def room(module: str) -> str:
    """The room of a module: the innermost one of :data:`FLOORS` that holds it; the empty string if none does."""
    holding = [name for rooms in FLOORS for name in rooms if within(module, name)]
    return max(holding, key=len, default="")


def floor(name: str) -> int:
    return next(height for height, rooms in enumerate(FLOORS) if name in rooms)


def dotted(node: ast.expr) -> str:
    """``np.random.rand`` as a string; the empty string for what is not a chain of names."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """The dotted name of everything that a file imports, wherever in the file; relative imports made absolute."""
    package = relative(path).removesuffix(".py").removesuffix("/__init__").split("/")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(start + ([node.module] if node.module else []))
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The dotted name of every function that a file calls, with the call."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def keyword(call: ast.Call, name: str) -> object:
    """The constant given for a keyword of a call, ``None`` if it is absent, ``...`` if it is not a constant."""
    for given in call.keywords:
        if given.arg == name:
            return given.value.value if isinstance(given.value, ast.Constant) else ...
    return None


def numpy_random_uses(path: Path) -> Iterator[tuple[str, ast.Attribute]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and dotted(node.value) in ("np.random", "numpy.random"):
            yield node.attr, node


@cache
def known() -> dict[str, Path]:
    return {dotted_path(path): path for path in MODULES}


def used_modules(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of the house that a file imports, wherever in the file, each with its line."""
    for name, node in imports(path):
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            stem = ".".join(parts[:end])
            found = next((module for module in (stem, f"{stem}.__init__") if module in known()), None)
            if found is not None:
                yield found, node.lineno
                break


def circles(uses: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of a graph that hold more than one node."""

    def reachable(start: str) -> set[str]:
        seen, open_ends = set[str](), [start]
        while open_ends:
            new = uses.get(open_ends.pop(), set()) - seen
            seen |= new
            open_ends += new
        return seen

    reach = {node: reachable(node) for node in uses}
    found = {tuple(sorted(other for other in reach[node] if node in reach.get(other, set()))) for node in uses}
    return [list(circle) for circle in sorted(found) if len(circle) > 1]


def test_circles_are_found() -> None:
    uses = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"f"}, "f": {"e"}}
    assert circles(uses) == [["b", "c"], ["e", "f"]]


def test_every_room_has_a_floor() -> None:
    rooms = [name for rooms in FLOORS for name in rooms]
    assert len(set(rooms)) == len(rooms), "a room lies on one floor"
    homeless = {module for module, path in known().items() if path.stat().st_size and not room(module)} - FRONT_DOORS
    assert not homeless, f"say in FLOORS where these lie: {sorted(homeless)}"
    assert not set(rooms) - {room(module) for module in known()}, "FLOORS names rooms that are not there"


def test_imports_point_downwards() -> None:
    wrong = []
    for path in MODULES:
        own = room(dotted_path(path))
        for module, line in used_modules(path):
            other, place = room(module), f"{relative(path)}:{line} imports {module}"
            if module in FRONT_DOORS:
                wrong.append(f"{place}: go to the room itself, not through the front door")
            elif other != own and floor(other) >= floor(own):
                wrong.append(f"{place}, which lies {'above it' if floor(other) > floor(own) else 'beside it'}")
    assert not wrong, "\n".join(wrong)


def test_nothing_goes_in_circles() -> None:
    modules = {dotted_path(path): {module for module, _ in used_modules(path)} for path in MODULES}
    rooms: dict[str, set[str]] = {}
    for module, used in modules.items():
        rooms.setdefault(room(module), set()).update(room(other) for other in used)
    assert circles(rooms) == []
    assert circles(modules) == []


def test_the_toolkit_does_not_import_attacks_or_audits() -> None:
    wrong = []
    for path in MODULES:
        if not relative(path).startswith("privfl/"):
            continue
        wrong += [f"{relative(path)} imports {n}" for n, _ in imports(path) if n.split(".")[0] in ("attacks", "audits")]
        if room(dotted_path(path)) in COMMAND_LINE:  # the command line loads them by name
            continue
        for name, call in calls(path):
            loads = name.split(".")[-1] in ("companion", "import_module", "__import__", "find_spec")
            texts = [
                node.value for given in call.args[:1] for node in ast.walk(given) if isinstance(node, ast.Constant)
            ]
            wrong += [
                f"{relative(path)}:{call.lineno} loads {text}"
                for text in texts
                if loads and str(text).startswith(("attack", "audit"))
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_file_has_one_subject_and_says_which(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400, f"{relative(path)} has {len(lines)} lines; what are its two subjects?"
    assert not lines or ast.get_docstring(tree(path)), f"{relative(path)} does not say in a docstring what it is"


def test_public_functions_and_classes_say_what_they_do() -> None:
    silent = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and "overload" not in {dotted(decorator).split(".")[-1] for decorator in node.decorator_list}
    ]
    assert not silent, "\n".join(silent)


def test_nothing_is_left_unfinished() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
    wrong = []
    for path in MODULES + SCRIPTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if marks.search(line):
                wrong.append(f"{relative(path)}:{number} {line.strip()}")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Raise) and node.exc is not None:
                target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if dotted(target) == "NotImplementedError":
                    wrong.append(f"{relative(path)}:{node.lineno} raises NotImplementedError")
    assert not wrong, "\n".join(wrong)


def test_no_body_is_a_mere_placeholder() -> None:
    wrong = []
    for path in MODULES:
        protocols = {
            id(item)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef) and any(dotted(base).endswith("Protocol") for base in node.bases)
            for item in node.body
        }
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or id(node) in protocols:
                continue
            decorators = {dotted(decorator).split(".")[-1] for decorator in node.decorator_list}
            body = node.body[1:] if ast.get_docstring(node) else node.body
            empty = bool(body) and all(
                isinstance(item, ast.Pass)
                or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and item.value.value is ...)
                for item in body
            )
            if empty and not decorators & {"abstractmethod", "overload"}:
                wrong.append(f"{relative(path)}:{node.lineno} {node.name}")
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_path_of_one_machine() -> None:
    places = "|".join(("work", "root", "home", "Users", "opt", "mnt", "tmp/venv"))
    pattern = re.compile(rf"(?<![\w.:/)}}-])(/({places})/|[A-Z]:\\\\?Users)")
    texts = MODULES + SCRIPTS + [ROOT / ".ci" / "run"]
    for folder in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks"):
        texts += [path for path in folder.glob("*") if path.suffix in (".md", ".toml", ".txt", ".yaml", ".json")]
    texts.append(ROOT / "Makefile")
    wrong = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes a file as text: ``read_text``, ``open`` in a mode without ``b``, and their kin."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "write_text"):
        return True
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    if name not in ("open", "fdopen"):
        return False
    given = [node.value for item in call.args for node in ast.walk(item) if isinstance(node, ast.Constant)]
    modes = [text for text in [*given, keyword(call, "mode")] if re.fullmatch(r"[rwaxt+b]{1,3}", str(text))]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "open":  # of a path, or of anything else
        return any("b" not in str(mode) for mode in modes)
    return not any("b" in str(mode) for mode in modes)


@pytest.mark.parametrize(
    "text", ["path.read_text()", "open(path)", "open(path, 'w')", "path.open('a')", "os.fdopen(3)"]
)
def test_a_file_opened_as_text_is_seen(text: str) -> None:
    assert opens_text(ast.parse(text, mode="eval").body)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["path.read_bytes()", "open(path, 'rb')", "session.open()", "tar.open(path, 'r:gz')"])
def test_what_opens_no_text_is_left_alone(text: str) -> None:
    assert not opens_text(ast.parse(text, mode="eval").body)  # type: ignore[arg-type]


def test_text_files_have_the_same_encoding_on_every_machine() -> None:
    wrong = [
        f"{relative(path)}:{node.lineno} takes the encoding of the user's locale"
        for path in [*MODULES, *SCRIPTS, *sorted((ROOT / "docs").rglob("*.py"))]
        if not relative(path).startswith("tests/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and opens_text(node) and keyword(node, "encoding") is None
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_else_imports_opacus() -> None:
    """Its import sets up logging, which :mod:`privfl.opacus_parts` undoes."""
    allowed = "privfl/opacus_parts.py"
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in MODULES
        for name, node in imports(path)
        if name.split(".")[0] == "opacus" and relative(path) != allowed
    ]
    assert not wrong, f"import it from {allowed}: {wrong}"


def test_every_public_name_says_what_it_is() -> None:
    assert len(set(privfl.__all__)) == len(privfl.__all__)
    silent = []
    for name in privfl.__all__:
        value = getattr(privfl, name)
        if name.startswith("__"):
            continue
        text = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
        generated = inspect.isclass(value) and (text or "").startswith(f"{value.__name__}(")  # by dataclass
        if not text or generated:
            silent.append(name)
    assert not silent, f"these public names have no docstring of their own: {silent}"


def test_nothing_is_unpickled() -> None:
    wrong = []
    for path in MODULES:
        wrong += [
            f"{relative(path)} imports {name}"
            for name, _ in imports(path)
            if name.split(".")[0] in UNPICKLERS and relative(path) != RESTRICTED_UNPICKLER
        ]
        for name, call in calls(path):
            if name == "torch.load" and keyword(call, "weights_only") is not True:
                wrong.append(f"{relative(path)}:{call.lineno} torch.load without weights_only=True")
            if name in ("np.load", "numpy.load") and keyword(call, "allow_pickle") is not False:
                wrong.append(f"{relative(path)}:{call.lineno} np.load without allow_pickle=False")
            if name.split(".")[-1] in ("read_pickle", "eval", "exec") and "." not in name.removesuffix(".read_pickle"):
                wrong.append(f"{relative(path)}:{call.lineno} {name}")
    assert not wrong, "\n".join(wrong)


def test_no_claim_rests_on_the_central_limit_accountant() -> None:
    """Opacus' "gdp" accountant reports less than is spent, so it must back no claim."""
    wrong = []
    for path in MODULES:
        wrong += [
            f"{relative(path)} imports {n}" for n, _ in imports(path) if re.search(r"\.gdp\b|GaussianAccountant", n)
        ]
        for name, call in calls(path):
            given = [
                item.value for item in [*call.args, *(k.value for k in call.keywords)] if isinstance(item, ast.Constant)
            ]
            if name.endswith("GaussianAccountant") or "gdp" in given:
                wrong.append(f"{relative(path)}:{call.lineno} {name}")
    assert not wrong, "\n".join(wrong)


def test_no_hidden_global_generator_decides_anything() -> None:
    wrong = []
    for path in MODULES:
        # These look for them in a user's code.
        if path.name in ("shared_state.py", "client_randomness.py", "identity.py", "untouched.py"):
            continue
        for name, _ in imports(path):
            if name.split(".")[0] == "random" or (
                name.startswith("numpy.random.") and name.split(".")[2] not in SEEDED
            ):
                wrong.append(f"{relative(path)} imports {name}")
        for attribute, node in numpy_random_uses(path):
            if attribute not in SEEDED:
                wrong.append(f"{relative(path)}:{node.lineno} np.random.{attribute}")
        for name, call in calls(path):
            if name.endswith("random.default_rng") and not (call.args or call.keywords):
                wrong.append(f"{relative(path)}:{call.lineno} default_rng without a seed")
            if name.startswith("torch.") and name[6:] in DRAWS and "generator" not in {k.arg for k in call.keywords}:
                wrong.append(f"{relative(path)}:{call.lineno} {name} without a generator")
    assert not wrong, "\n".join(wrong)


def test_the_generators_of_the_whole_process_are_borrowed_by_one_thread_at_a_time() -> None:
    found = {relative(path) for path in MODULES for name, _ in calls(path) if name.endswith("fork_rng")}
    assert found == {"privfl/randomness.py"}


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{relative(path)}:{call.lineno}"
        for path in MODULES
        if room(dotted_path(path)) not in COMMAND_LINE
        for name, call in calls(path)
        if name == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_every_name_in_a_registry_is_kebab_case() -> None:
    names = {f"dataset {entry.name}": entry.name for entry in datasets()} | {
        f"model {m.name}": m.name for m in models()
    }
    registries = 0
    for found in pkgutil.walk_packages(privfl.__path__, "privfl."):
        module = importlib.import_module(found.name)
        for constant, value in vars(module).items():
            if not (constant.isupper() and not constant.startswith("_") and isinstance(value, dict) and value):
                continue
            if all(isinstance(key, str) and inspect.isclass(item) for key, item in value.items()):
                registries += 1
                names |= {f"{found.name}.{constant} {key}": key for key in value}
    assert registries >= 3, "algorithms, partitions and cohorts are registries; the search must find them"
    wrong = [place for place, name in names.items() if not KEBAB_CASE.fullmatch(name)]
    assert not wrong, "\n".join(wrong)


def test_an_algorithm_is_registered_under_its_own_name() -> None:
    from privfl.algorithms import ALGORITHMS

    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())


def test_every_folder_of_tests_is_a_package() -> None:
    """Pytest imports test files by name, so that two of one name need packages to tell them apart."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_a_module_is_found_from_its_test() -> None:
    """``privfl/data/files.py`` is tested in ``tests/data/test_files.py``, ``attacks/result.py`` beside it likewise."""
    listed = {f"{folder}/{name}.py" for folder, names in TESTED_ELSEWHERE.items() for name in names.split()}
    modules = [path for path in MODULES if path.name not in ("__init__.py", "__main__.py")]
    without = {
        relative(path)
        for path in modules
        if not (ROOT / "tests" / relative(path).removeprefix("privfl/")).with_name(f"test_{path.name}").exists()
    }
    assert not without - listed, f"these modules need a test file of their name: {sorted(without - listed)}"
    assert not listed - without, f"take these off TESTED_ELSEWHERE: {sorted(listed - without)}"
