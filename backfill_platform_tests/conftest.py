"""Fixtures shared by all tests; each family lives in a module of its own."""

pytest_plugins = [
    "backfill_platform_tests.tiers",
    "backfill_platform_tests.fixtures_warehouse",
    "backfill_platform_tests.fixtures_spark",
    "backfill_platform_tests.fixtures_pipeline",
    "backfill_platform_tests.fixtures_stack",
    "backfill_platform_tests.fixtures_kafka",
    "backfill_platform_tests.fixtures_postgres",
    "backfill_platform_tests.fixtures_object_store",
    "backfill_platform_tests.fixtures_world",
]
