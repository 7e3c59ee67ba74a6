"""ClickHouse: what is stored, what differs from the lake, and the repair of exactly that.

Holds the connection (`client`), the shape of a target and what a repair asks of it (`ddl`, `preconditions`), SQL fragments
(`sql`), fingerprints of hours (`fingerprints`), the rows an hour should hold (`staging`, `push`), who is at work (`leases`),
the difference (`diff`), the protocol (`prepare`, `health`, `publish`), what can be undone (`patches`), the record of repairs
(`ledger`), and the local server for machines without one (`embedded`).
Add here: what must know ClickHouse's SQL, engines or traps. Read the docstrings of `staging`, `diff` and `publish` before
changing any of them: a wrong order of two rows loses data silently.
Keep out: Dagster, Spark, Iceberg, the choice of hours, contracts on what may change; nothing here decides what is right,
only what is stored. Identifiers are always quoted, values are always bound parameters.
"""
