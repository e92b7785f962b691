"""Makes an environment for each package: what the package needs beyond those of `make install`.

The environment reads the packages of the one that runs this file. pip adds what is missing, and
other versions where a package asks for them. Those of torch and Lightning remain in our limits.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENTS = REPOSITORY / ".venv-foreign"

# Tried versions, for Python 3.11.
PACKAGES = {
    "lightly": "lightly==1.6.0",
    "chemprop": "chemprop==2.3.1",
    "pytorch-forecasting": "pytorch-forecasting==1.8.0",
    "transformers": "transformers==5.24.0",
    "peft": "peft==0.21.2",
    "scvi-tools": "scvi-tools==1.4.2",
    "anomalib": "anomalib==2.7.0",
    "kraken": "kraken==7.1.1",
    "neuralforecast": "neuralforecast==3.3.0",
    "darts": "darts[torch]==0.48.1",
}
# Packages that cannot be tried yet, and why.
NOT_YET = {
    "NeMo": "3.0.0 asks for Lightning 2.4 or older. Beside Lightning 2.6 its import fails in "
    "nv_one_logger, which compares the signature of `Trainer.save_checkpoint`",
}


def python_of(package: str) -> Path:
    """Return the interpreter of a package's environment, which is made first if it is not there."""
    folder = ENVIRONMENTS / package
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.is_file() and stamp.read_text() == PACKAGES[package]:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # `addsitedir` also reads the .pth files there, as that of an editable installation.
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(site, "base.pth").write_text(line)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as limits:
        limits.write("".join(f"{limit}\n" for limit in _limits()))
        limits.flush()
        install = ["-m", "pip", "install", "--no-input", "-c", limits.name, PACKAGES[package]]
        subprocess.run([python, *install], check=True)
    stamp.write_text(PACKAGES[package])
    return python


def _limits() -> list[str]:
    """Return the tested versions of torch and its libraries, and the ranges of Lightning."""
    tested = re.findall(r"^torch(?:audio|vision)?==.*", _text("constraints.txt"), re.MULTILINE)
    return tested + re.findall(r'"((?:pytorch-)?lightning>=[^"]*)"', _text("pyproject.toml"))


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text()
