"""rosecourse desk: make or renew my/, the learner's copy of the notebooks. `make lab` and `make reset` call it."""

from __future__ import annotations

from pathlib import Path

import click

from ..desk.copies import renew, reset
from ..desk.notebooks import repository
from .options import Flags, command


@command
@click.option(
    "--reset", metavar="NNN", help="Bring only this notebook back, such as 038 or hunts/038, and keep yours beside it."
)
def desk(flags: Flags) -> None:
    """Make or renew my/, your copy of the notebooks.

    New lessons are added, and those that you have not changed are brought up to date.
    """
    root = repository(Path.cwd())
    for line in renew(root) if flags.reset is None else [reset(root, flags.reset)]:
        click.echo(line)
