"""`python -m backfill_platform.cli`: the `backfill` command of this interpreter."""

from backfill_platform.cli.main import main

main()
