"""Help of the commands that train, on one screen instead of hundreds of lines."""

from __future__ import annotations

from lightning_hier.cli.commands import COMMANDS, PROGRAM
from lightning_hier.strategies.registry import PRESETS, summary

_TEXT = """\
usage: {program} {name} --config FILE [--config FILE ...] [--OPTION=VALUE ...]

{summary}: LightningCLI with the strategies of this package. A config:

  model:
    class_path: my_models.Net        # any LightningModule, also in the current directory
    init_args: {{width: 64}}
  data:
    class_path: my_data.Images       # any LightningDataModule; optional
  trainer:                           # arguments of Trainer
    devices: 8
    num_nodes: 4
    strategy: bmuf_gtc

Options set or override any line: --model.width=32 --trainer.devices=2

strategies:
{strategies}

  --trainer.strategy=bmuf --trainer.strategy.block_size=20    a name and its arguments
  --trainer.strategy=my_bmuf.yaml                             a file, as in examples/strategies

more:
  --print_config           the whole config with all defaults
  --trainer.strategy.help=bmuf, --model.help=my_models.Net, --data.help=my_data.Images
                           arguments of a strategy, a model, a data module
  --ckpt_path=FILE         resume from a checkpoint, or evaluate it
  --help_all               every option
"""


def short_help(name: str) -> str:
    """Help of ``fit``, ``validate``, ``test`` or ``predict``."""
    width = max(map(len, PRESETS))
    strategies = "\n".join(f"  {key:<{width}}  {summary(each)}" for key, each in PRESETS.items())
    does = COMMANDS[name].summary.capitalize()
    return _TEXT.format(program=PROGRAM, name=name, summary=does, strategies=strategies)
