"""`python -m tempera` is the command line."""

from .cli import main

main()
