"""Entry point of `python3 -m heddle_lab`, the same as the command `heddle`."""

from heddle_lab.cli import main

main()
