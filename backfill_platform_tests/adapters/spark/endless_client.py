"""A client of Spark Connect that counts for days, until it is stopped: `python -m ... REMOTE`."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.stopping import stoppable

if __name__ == "__main__":
    try:
        with stoppable(SparkSession.builder.remote(sys.argv[1]).getOrCreate) as session:
            numbers = session().range(10**15)
            os.write(1, b"begins\n")
            numbers.agg(F.sum(F.col("id") % 7)).collect()
    except KeyboardInterrupt:
        os.write(1, b"stopped\n")
