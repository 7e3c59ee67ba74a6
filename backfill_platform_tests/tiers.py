"""The tiers of the tests, enforced when they are collected.

Unmarked tests are the fast tier; CI also runs those marked `whole`, and at night those marked `slow`. One that takes longer
than its tier allows fails; one in `domain` that asks for an engine, or one that drives a browser without saying so, is refused
before anything runs.
"""

from pathlib import Path

import pytest

FAST_SECONDS = 300  # of the test itself, on a busy machine; fixtures that start engines are not counted
SLOW_SECONDS = 900
ENGINES = {"spark", "warehouse_url", "warehouse_database", "lake"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the time of its tier, and refuse tests that are in the wrong place."""
    problems = []
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        folder = Path(item.path).parent.name
        if folder == "domain" and fixtures & ENGINES:
            problems.append(f"{item.nodeid} is in domain and uses {', '.join(sorted(fixtures & ENGINES))}")
        if folder == "browser" and item.get_closest_marker("browser") is None:
            problems.append(f"{item.nodeid} is not marked `browser`")
        if item.get_closest_marker("timeout") is None:
            patient = any(item.get_closest_marker(tier) for tier in ("whole", "slow"))
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS if patient else FAST_SECONDS, func_only=True))
    if problems:
        raise pytest.UsageError("\n".join(problems))
