"""Repairing consumers through Kafka: replaying hours of the lake, draining, handing over open sessions, counting deliveries.

Add here: use cases of topics. Keep out: what talks to brokers (`adapters.kafka`), Dagster.
"""
