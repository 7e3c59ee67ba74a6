"""The metrics of a replay, read as Prometheus reads them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from backfill_platform_tests.fixtures_warehouse import wait_until

PREFIX = "backfill_replay_"


def scrape(port: int, replay: str) -> dict[str, float]:
    """The metrics of a replay. Raises URLError where none are served."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name.startswith(PREFIX)]
    assert {sample.labels["replay"] for sample in samples} == {replay}
    return {sample.name.removeprefix(PREFIX): sample.value for sample in samples}


@contextmanager
def scraping(port: int, replay: str) -> Iterator[Future[dict[str, float]]]:
    """Scrape in a thread while the block runs, until some messages are acknowledged; yields a future of these metrics."""
    metrics: dict[str, float] = {}

    def sends() -> bool:
        with suppress(URLError):  # it has not begun
            metrics.update(scrape(port, replay))
        return bool(metrics.get("messages_acknowledged"))

    def until_it_sends() -> dict[str, float]:
        wait_until(sends, 120)
        return metrics

    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(until_it_sends)
