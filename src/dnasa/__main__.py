"""`python -m dnasa` is `dnasa`."""

from dnasa.cli import main

main()
