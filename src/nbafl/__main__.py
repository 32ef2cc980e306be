"""`python -m nbafl`: the same as the `nbafl` command, for launchers such as torchrun."""

from nbafl.cli import main

main()
