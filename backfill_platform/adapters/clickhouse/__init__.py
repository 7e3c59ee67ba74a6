"""ClickHouse: the client, SQL fragments, schemas and preconditions of targets, fingerprints, and the protocol of a repair.

Holds the connection (`client`), the shape of a target and what a repair needs of it (`schema`, `target`, `preconditions`,
`refusals`), SQL fragments (`sql`), fingerprints of hours (`fingerprints`), whether net state and FINAL agree (`consistency`),
the lake's files as ClickHouse reads them (`lake_files`), a table that nobody has declared (`table_facts`); `publishing` has the
protocol, `state` what is kept beside the tables. Add here: what must know ClickHouse's SQL, engines or traps. Keep out:
Dagster, Spark, Iceberg, the choice of hours and the limits of a change; nothing here decides what is right, only what is
stored. Identifiers are always quoted, values are always bound parameters.
"""
