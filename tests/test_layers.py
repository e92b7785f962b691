"""Tests that the source follows docs/architecture.md: imports point to lower layers only.

Also tests the length, the name and the docstring of each file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "lightning_hier"
# From the lowest to the highest. A layer imports from itself and lower layers.
LAYERS = (
    "reference",
    "algorithms",
    "comm",
    "planning",
    "membership",
    "loop",
    "parameter_server",
    "callbacks",
    "strategies",
    "fabric",
    "cli",
)
# Any layer may import these modules of the package's root.
SHARED = (f"{PACKAGE}.version",)
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities")
# Only the command line uses the planner.
PLANNER = f"{PACKAGE}.planning"
FORBIDDEN = {
    "reference": ("torch.distributed", *LIGHTNING),
    "algorithms": ("torch.distributed", *LIGHTNING),
    "comm": LIGHTNING,
    "planning": LIGHTNING,
    "membership": (PLANNER, *LIGHTNING),
    "loop": (PLANNER, *LIGHTNING),
    "parameter_server": (PLANNER, *LIGHTNING),
    "callbacks": (PLANNER,),
    "strategies": (PLANNER,),
    "fabric": (PLANNER,),
}
OUTSIDE = ("examples", "tests", "benchmarks")
SHAPELESS_NAMES = ("utils.py", "common.py", "helpers.py")
MOST_LINES = 450

REPOSITORY = Path(__file__).resolve().parents[1]


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Dotted names of all imports of a module of `package`, also of those in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            # `import torch` reaches torch.distributed without importing it by name.
            if node.value.id == "torch":
                yield f"torch.{node.attr}"


def is_within(name: str, module: str) -> bool:
    """Whether the dotted name is the module or something in it."""
    return name == module or name.startswith(module + ".")


def layer_of(name: str) -> str | None:
    """Layer of a dotted name of the package. None for its root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else None


def import_faults(path: Path, root: Path) -> Iterator[str]:
    """Yield a message for each import of a file of the package that breaks a rule."""
    where = path.relative_to(root)
    package = ".".join(where.parent.parts)
    layer = layer_of(package)
    if layer is None and where.parent != Path(PACKAGE):
        yield f"{where}: {where.parts[1]} is no layer; the layers are {', '.join(LAYERS)}"
    for name in imported_names(ast.parse(path.read_text()), package):
        if any(is_within(name, module) for module in OUTSIDE):
            yield f"{where}: the package must not import {name}"
        if layer is None:
            continue
        if any(is_within(name, module) for module in FORBIDDEN.get(layer, ())):
            yield f"{where}: {layer} must not import {name}"
        if not is_within(name, PACKAGE) or any(is_within(name, module) for module in SHARED):
            continue
        imported = layer_of(name)
        if imported is None:
            yield f"{where}: {layer} must not import {name} from the package's root"
        elif LAYERS.index(imported) > LAYERS.index(layer):
            yield f"{where}: {layer} must not import {name}, which lies above it"


def shape_faults(path: Path, root: Path) -> Iterator[str]:
    """Yield a message for each rule on names, length and docstrings that a file breaks."""
    where = path.relative_to(root)
    source = path.read_text()
    lines = source.count("\n")
    if not ast.get_docstring(ast.parse(source)):
        yield f"{where}: no module docstring"
    if lines > MOST_LINES:
        yield f"{where}: {lines} lines, at most {MOST_LINES}"
    if path.name in SHAPELESS_NAMES:
        yield f"{where}: a file is named for its idea, not {path.name}"


def faults(root: Path) -> list[str]:
    """Messages for all broken rules in the source tree under `root`, one line each."""
    package = sorted((root / PACKAGE).rglob("*.py"))
    beside = sorted(path for folder in OUTSIDE for path in (root / folder).rglob("*.py"))
    messages = [fault for path in package for fault in import_faults(path, root)]
    return messages + [fault for path in package + beside for fault in shape_faults(path, root)]


def test_imports_point_down_and_files_are_small() -> None:
    assert list((REPOSITORY / PACKAGE).rglob("*.py"))
    messages = faults(REPOSITORY)
    assert not messages, "\n" + "\n".join(messages)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree that follows every rule."""
    files = {
        "__init__.py": "from lightning_hier.strategies import bmuf",
        "version.py": "",
        "algorithms/bmuf.py": "import math\nimport torch\nfrom . import gtc",
        "algorithms/gtc.py": "from lightning_hier.version import __version__",
        "comm/groups.py": "import torch.distributed as dist\nfrom ..algorithms.gtc import encode",
        "parameter_server/server.py": "from lightning_hier.comm.groups import Groups",
        "planning/links.py": "from lightning_hier.comm.groups import Groups",
        "callbacks/log.py": "import lightning\nfrom lightning_hier import comm",
        "strategies/bmuf.py": "from lightning_hier.callbacks.log import Log",
        "cli/main.py": "from lightning_hier.strategies.bmuf import BMUFStrategy",
    }
    for name, body in files.items():
        write(tmp_path, name, body)
    return tmp_path


def write(root: Path, name: str, body: str, docstring: str = '"""What it is."""\n') -> None:
    path = root / PACKAGE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(docstring + body + "\n")


def test_checker_accepts_a_tree_that_follows_the_rules(tree: Path) -> None:
    assert faults(tree) == []


@pytest.mark.parametrize(
    ("name", "body", "fault"),
    [
        ("algorithms/a.py", "from lightning_hier.comm import x", "comm.x, which lies above"),
        ("algorithms/a.py", "from .. import comm", "lightning_hier.comm, which lies above"),
        ("algorithms/a.py", "def f():\n    import lightning_hier.cli", "which lies above"),
        ("algorithms/a.py", "import torch.distributed as dist", "not import torch.distributed"),
        ("algorithms/a.py", "import torch\nx = torch.distributed.get_rank()", "torch.distributed"),
        ("algorithms/a.py", "import lightning.pytorch", "must not import lightning.pytorch"),
        ("parameter_server/a.py", "import pytorch_lightning", "must not import pytorch_lightning"),
        ("planning/a.py", "import lightning.pytorch", "must not import lightning.pytorch"),
        ("strategies/a.py", "from lightning_hier.planning import x", "must not import"),
        ("strategies/a.py", "from lightning_hier import BMUFStrategy", "from the package's root"),
        ("strategies/a.py", "from examples.acoustic import demo", "must not import examples"),
        ("__init__.py", "import tests.ranks", "must not import tests.ranks"),
        ("extra/a.py", "", "extra is no layer"),
        ("comm/utils.py", "", "not utils.py"),
        ("comm/a.py", "x = 1\n" * 450, "451 lines"),
    ],
)
def test_checker_finds_a_broken_rule(tree: Path, name: str, body: str, fault: str) -> None:
    write(tree, name, body.rstrip("\n"))
    assert len(faults(tree)) == 1
    assert fault in faults(tree)[0]


def test_checker_finds_a_missing_docstring(tree: Path) -> None:
    write(tree, "comm/a.py", "x = 1", docstring="")
    assert faults(tree) == [f"{PACKAGE}/comm/a.py: no module docstring"]


@pytest.mark.parametrize("folder", OUTSIDE)
def test_checker_reads_the_folders_beside_the_package(tree: Path, folder: str) -> None:
    path = tree / folder / "helpers.py"
    path.parent.mkdir()
    path.write_text('"""Help."""\n')
    assert faults(tree) == [f"{folder}/helpers.py: a file is named for its idea, not helpers.py"]
