"""Tests of the archives of `make build`, of an installation without a checkout, and of pins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import lightning_hier
from tests.conftest import REPOSITORY
from tests.docs.test_blocks import CI
from tests.packaging.environment import OutsideEnvironment

VERSION = lightning_hier.__version__
EXTRAS = {"accelerate", "transformers"}
EXTRAS |= set("cli demo examples bench docs dev elastic peers ray stateful".split())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of both archives. `build` makes the wheel from the source archive."""
    pytest.importorskip("hatchling", reason="the backend is in the extra named dev")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), "."]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"lightning_hier-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {"lightning_hier", info}
    assert f"{info}/licenses/LICENSE" in names
    files = [path for path in (REPOSITORY / "lightning_hier").rglob("*") if path.is_file()]
    sources = {str(path.relative_to(REPOSITORY)) for path in files if path.suffix != ".pyc"}
    assert {Path(name).suffix for name in sources} == {".py", ".c", ".typed"}
    assert sources <= names


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"lightning_hier-{VERSION}.dist-info/METADATA"))
    assert metadata["Version"] == VERSION
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0] for line in needed}
    assert names == {"torch", "lightning", "pyzmq"}


def test_source_archive_holds_what_the_commands_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("pyproject.toml", "Makefile", "LICENSE", "README.md", "constraints.txt", CI):
        assert name in names
    for folder in ("lightning_hier", "tests", "examples", "benchmarks", "docs"):
        assert any(name.startswith(f"{folder}/") for name in names), folder
    assert not [name for name in names if name.endswith((".pyc", ".ckpt"))]


def test_workflow_of_a_release_makes_links_absolute(tmp_path: Path) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/release.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    (command,) = [step["run"] for step in steps if "sed" in step.get("run", "")]
    readme = tmp_path / "README.md"
    readme.write_text((REPOSITORY / "README.md").read_text())
    github = {"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name"}
    environment = os.environ | github | {"GITHUB_REF_NAME": "v1"}
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=environment, check=True)
    targets = re.findall(r"\]\(([^)#][^)]*)\)", readme.read_text())
    assert targets and all(target.startswith("https://") for target in targets)
    assert "https://host/owner/name/raw/v1/docs/assets/headline.png" in targets
    assert "https://host/owner/name/blob/v1/docs/choosing.md" in targets


def test_version_is_in_one_file_and_in_the_citation() -> None:
    """Two places could differ."""
    assert 'dynamic = ["version"]' in (REPOSITORY / "pyproject.toml").read_text()
    sources = [*(REPOSITORY / "lightning_hier").rglob("*.py"), REPOSITORY / "pyproject.toml"]
    holders = [path.name for path in sources if f'"{VERSION}"' in path.read_text()]
    assert holders == ["version.py"]
    assert f"\nversion: {VERSION}\n" in (REPOSITORY / "CITATION.cff").read_text()


TRAINING = """
import warnings; warnings.simplefilter("ignore")
import json, logging, torch
from lightning.pytorch import LightningModule, Trainer
import lightning_hier
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = Trainer(strategy="bmuf", accelerator="cpu", devices=1, max_steps=2, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=1))
print(json.dumps([lightning_hier.__file__, lightning_hier.__version__, trainer.global_step]))
"""

TYPED = """
from lightning_hier import BMUF, newest_checkpoint
reveal_type(BMUF(block_size=5).block_size); reveal_type(newest_checkpoint("saved"))
BMUF(block_size="five")
"""

# Only the package is checked, because torch would take minutes.
MYPY_CONFIG = """
[mypy]
[mypy-torch.*,lightning.*,typing_extensions]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.mark.slow
def test_installation_outside_the_checkout_trains_and_is_typed(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = OutsideEnvironment(tmp_path_factory.mktemp("outside"))
    outside.install(wheel)
    file, version, steps = json.loads(outside.run(TRAINING).stdout.splitlines()[-1])
    assert Path(file).is_relative_to(outside.site)
    assert (version, steps) == (VERSION, 2)

    (outside.folder / "user.py").write_text(TYPED)
    (outside.folder / "mypy.ini").write_text(MYPY_CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--python-executable={outside.python}", "user.py"],
        cwd=outside.folder,
        capture_output=True,
        text=True,
    )
    out = done.stdout
    assert """type is "int | Literal['auto']""" in out, out
    assert "Path | None" in out or "str | None" in out, out
    assert """incompatible type "Literal['five']"; expected "int | Literal['auto']""" in out, out


PYTHONS = re.findall(
    r"Programming Language :: Python :: (3\.\d+)", (REPOSITORY / "pyproject.toml").read_text()
)


def _pins(python: str) -> list[Requirement]:
    """Requirements in constraints.txt that apply to a version of Python."""
    text = (REPOSITORY / "constraints.txt").read_text()
    lines = [line.partition("#")[0] for line in text.splitlines()]
    every = [Requirement(line) for line in lines if line.strip()]
    environment = {"python_version": python}
    return [pin for pin in every if pin.marker is None or pin.marker.evaluate(environment)]


def _installed_pins() -> Iterator[tuple[Requirement, SpecifierSet]]:
    """Yield each pin that is installed, and the versions of Python that the package supports."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for pin in _pins(running):
        try:
            data = metadata(pin.name)
        except PackageNotFoundError:
            continue
        if pin.specifier.contains(data["Version"]):
            yield pin, SpecifierSet(data.get("Requires-Python", ""))


@pytest.mark.parametrize("python", PYTHONS)
def test_no_pin_demands_another_python(python: str) -> None:
    """Such a pin, without a marker, makes pip refuse the whole installation."""
    pinned = {str(pin) for pin in _pins(python)}
    known = [(str(pin), pythons) for pin, pythons in _installed_pins() if str(pin) in pinned]
    assert known, "no package of constraints.txt is installed"
    assert not [pin for pin, pythons in known if not pythons.contains(f"{python}.0")]


@pytest.mark.parametrize("python", PYTHONS)
def test_a_package_has_one_pin(python: str) -> None:
    names = [pin.name for pin in _pins(python)]
    assert len(names) == len(set(names))
