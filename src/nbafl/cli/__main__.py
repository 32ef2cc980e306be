"""`python -m nbafl.cli`, the same as the `nbafl` command."""

from nbafl.cli import main

main()
