"""`lightning-hier completion bash|zsh`: prints a completion script for a shell.

The script contains the options. A script that called Python would have to wait for the import of
torch at every key press.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from lightning.pytorch import Trainer

from lightning_hier.cli.main import COMMANDS
from lightning_hier.cli.mistakes import PROGRAM
from lightning_hier.strategies.registry import PRESETS

SHELLS = ("bash", "zsh")
_USAGE = f"""\
usage: {PROGRAM} completion {"|".join(SHELLS)}

Print a script that completes commands, options and strategies. To enable it, run:

  bash  {PROGRAM} completion bash >> ~/.bashrc
  zsh   {PROGRAM} completion zsh >> ~/.zshrc
"""
# Bash splits words at "=", zsh does not: the option is the previous word, or the part before "=".
_SCRIPT = """\
_lightning_hier() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" option="${{COMP_WORDS[COMP_CWORD-1]}}"
    local begun="" words=""
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $option == "=" ]]; then
        option="${{COMP_WORDS[COMP_CWORD-2]}}"
    elif [[ $word == --*=* ]]; then
        option="${{word%%=*}}" begun="${{word%%=*}}=" word="${{word#*=}}"
    fi
    if (( COMP_CWORD == 1 )); then
        words="{commands} --help --version"
    elif [[ $option == --trainer.strategy ]]; then
        words="{strategies}"
    elif [[ " {training} " == *" ${{COMP_WORDS[1]}} "* && $word == -* ]]; then
        words="{options}"
    elif [[ ${{COMP_WORDS[1]}} == completion ]]; then
        words="{shells}"
    fi
    COMPREPLY=( $(compgen -P "$begun" -W "$words" -- "$word") ) || :
}}
complete -o default -o bashdefault -F _lightning_hier {program}
"""
# zsh runs scripts for bash after bashcompinit, which needs compinit.
_BEFORE = {
    "bash": "",
    "zsh": "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n",
}


def run(args: list[str]) -> None:
    """Print the script for a shell.

    Raises:
        ValueError: the shell is unknown.
    """
    if not args or {"-h", "--help"} & set(args):
        print(_USAGE, end="")
        return
    if len(args) > 1 or args[0] not in SHELLS:
        raise ValueError(f"the shell must be one of {', '.join(SHELLS)}, got {' '.join(args)}")
    print(script(args[0]), end="")


def script(shell: str) -> str:
    """The completion script for a shell."""
    return _BEFORE[shell] + _SCRIPT.format(
        program=PROGRAM,
        commands=" ".join(COMMANDS),
        training=" ".join(name for name, command in COMMANDS.items() if command.trains),
        strategies=" ".join(PRESETS),
        options=" ".join(sorted(set(_options()))),
        shells=" ".join(SHELLS),
    )


def _options() -> Iterator[str]:
    """Options of the commands that train, without those of the user's model and data."""
    yield from ("--help", "--help_all", "--config", "--print_config", "--seed_everything")
    yield from ("--model", "--data", "--ckpt_path")
    yield from (f"--trainer.{name}" for name in _arguments(Trainer))
    for preset in PRESETS.values():
        yield from (f"--trainer.strategy.{name}" for name in _arguments(preset))


def _arguments(kind: type) -> Iterator[str]:
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind != parameter.VAR_KEYWORD:
            yield parameter.name
