"""The command `heddle`: a module for each of its commands, or for a few that belong together.

heddle      the group of all commands, and what becomes of their errors
options     types and texts of options that several commands have
folders     runs that commands read and publish
outcomes    what came of cells that were measured
stdout      tables on stdout
"""

from heddle_lab.cli.heddle import cli, main

__all__ = ["cli", "main"]
