"""One statement of DuckDB in a process of its own: an order on standard input, the most memory it had on standard output."""

import json
import resource
import sys


def main() -> None:
    order = json.load(sys.stdin)
    sys.path.insert(0, order["packages"])
    import duckdb

    connection = duckdb.connect(config=order["settings"])
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(order["sql"])
    # ru_maxrss is in kilobytes on Linux.
    json.dump({"gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}, sys.stdout)


if __name__ == "__main__":
    main()
