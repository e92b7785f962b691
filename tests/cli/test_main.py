"""Tests of `lightning-hier` before a command runs: help, version, errors, imports."""

from __future__ import annotations

import pytest

from lightning_hier.cli import mistakes
from lightning_hier.cli.main import COMMANDS, Command, main
from lightning_hier.version import __version__
from tests.cli.shell import run_python


@pytest.mark.parametrize("args", [["--help"], ["fit", "--help"]])
def test_help_fits_on_a_screen(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(args)
    assert 5 < len(capsys.readouterr().out.splitlines()) <= 40


def test_module_is_the_command() -> None:
    assert run_python("-m", "lightning_hier", "--version").stdout.split()[-1] == __version__


PLAN = "plan --hosts 2 --devices 4 --parameters 1e6 --step-s 0.1 --between-mbit-s 100"
PRINT_IMPORTS = """\
import runpy, sys
sys.argv[:] = sys.argv[1:]
sys.orig_argv[:] = [sys.executable, *sys.argv]
if sys.argv[0] == "-m":
    del sys.argv[0]
    run = lambda: runpy.run_module("lightning_hier", run_name="__main__", alter_sys=True)
else:
    from lightning_hier.cli.main import main as run
try:
    run()
except SystemExit:
    pass
print(sorted({name.split(".")[0] for name in sys.modules} & {"torch", "lightning", "numpy"}))
"""


@pytest.mark.parametrize(
    "command",
    ["-m lightning_hier --version", "bin/lightning-hier fitt", f"bin/lightning-hier {PLAN}"],
)
def test_commands_without_torch_do_not_import_it(command: str) -> None:
    done = run_python("-c", PRINT_IMPORTS, *command.split())
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_public_names_are_imported_when_one_is_asked_for() -> None:
    """The import loads no modules beside those of torch and Lightning, and prints nothing."""
    code = (
        "import sys; sys.argv[0] = 'lightning-hier'\n"
        "import lightning_hier\n"
        "assert 'torch' not in sys.modules\n"
        "import lightning.pytorch, torch.distributed.device_mesh\n"
        "before = set(sys.modules)\n"
        "from lightning_hier import BMUFStrategy, __version__\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert lightning_hier.GTC and not hasattr(lightning_hier, 'no_such')\n"
        "from lightning.pytorch.strategies import StrategyRegistry\n"
        "print('bmuf_gtc' in StrategyRegistry, new - {'lightning_hier'} or 'nothing else')"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("True nothing else\n", "")


def test_error_for_an_unknown_command_lists_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fitt"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'fitt'" in line
    assert all(name in line for name in COMMANDS)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("plan --speed 3", "unrecognized arguments: --speed 3"),
        ("plan --hosts two", "argument --hosts: invalid int value: 'two'"),
        ("plan --parameters 1.5", "argument --parameters: must be a whole number, got 1.5"),
    ],
)
def test_error_for_wrong_arguments_is_one_line(
    args: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(args.split())
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lightning-hier: error: {expected}")
    assert line.endswith(f"'lightning-hier {args.split()[0]} --help' lists the arguments")


class Raising:
    """A command that raises an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, args: list[str]) -> None:
        raise self.error


def test_user_error_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = FileNotFoundError("a.b")
    monkeypatch.setitem(COMMANDS, "fail", Command("fail", "fail"))
    monkeypatch.setattr("lightning_hier.cli.main._module", lambda name: Raising(error))
    with pytest.raises(SystemExit) as stop:
        main(["fail"])
    assert stop.value.code == 2
    first, place = capsys.readouterr().err.splitlines()
    assert first == f"lightning-hier: error: {error}"
    assert __file__ in place


@pytest.mark.parametrize(
    ("variables", "expected_error"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "SLURM_PROCID": "0"}, "error on rank 3: no"),
        ({"SLURM_PROCID": "5"}, "error on rank 5: no"),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "SLURM_PROCID": "0"}, "error on rank 1: no"),
        ({"LOCAL_RANK": "1", "NODE_RANK": "2"}, "error on rank 1 of host 2: no"),
        ({}, "error: no"),
    ],
    ids=["torchrun", "slurm", "lightning", "lightning_on_hosts", "alone"],
)
def test_rank_is_named(
    variables: dict[str, str],
    expected_error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        mistakes.end_with("no")
    assert capsys.readouterr().err == f"lightning-hier: {expected_error}\n"
