"""The commands of a fresh machine: `up` and `demo`."""

import sys

import click

from backfill_platform.cli import terminal
from backfill_platform.settings import load_settings


@click.command()
def up() -> None:
    """Start warehouse, Spark, Dagster UI and daemon; Ctrl-C or TERM stops all of it."""
    from backfill_platform.devstack.stack import Services
    from backfill_platform.devstack.stack import up as start

    settings = load_settings()

    def ready(services: Services) -> None:
        terminal.out.print(
            f"Dagster UI   {services.web_url}/assets\n"
            f"             choose an asset, Materialize, a range of hours, Launch backfill\n"
            f"Spark        {services.spark_remote}\n"
            f"state        {settings.home}\n"
            f"stop         Ctrl-C, or kill {services.pid}",
            soft_wrap=True,
        )

    sys.exit(start(settings, lambda text: terminal.err.print(text, soft_wrap=True), ready))


@click.command()
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def demo(output: str) -> None:
    """Land, publish, damage, find, repair and verify 24 hours of real web requests; embedded services only."""
    from backfill_platform.cli.demo import run_demo

    sys.exit(run_demo(load_settings(), as_json=output == "json"))
