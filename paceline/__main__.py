"""`python -m paceline` is the same as `paceline`."""

from paceline.cli.main import main

main()
