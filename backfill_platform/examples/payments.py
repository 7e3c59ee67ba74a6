"""Lines of retail baskets -> payments with what the household paid in the hour before -> payments by hour.

A payment is a basket: the lines with one household, store, basket number and time. How often and how much a household paid in
the trailing hour `(t - 1 h, t]`, this payment included, is a signal of fraud. Payments of one instant are in each other's hour.
The lines come from data/complete_journey/.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.adapters.spark.velocity import trailing
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable

SPAN = timedelta(hours=1)
HOURS = HourRange(datetime(2017, 1, 1, tzinfo=UTC), datetime(2018, 1, 1, 4, tzinfo=UTC))
LINES_FILE = Path(__file__).parent / "data" / "complete_journey" / "transactions.csv.gz"
HEADER = (
    "household_id,store_id,basket_id,product_id,quantity,sales_value,"
    "retail_disc,coupon_disc,coupon_match_disc,week,transaction_timestamp"
)


class BasketLines(DataFrameModel):
    """One product in a basket, as the till has it."""

    ingestion_hour: T.TimestampType = Field(description="hour in which the line arrived, UTC")
    event_time: T.TimestampType = Field(description="when the basket was paid, UTC, to the second")
    household_id: T.LongType = Field(ge=1, description="number of the household that paid")
    store_id: T.LongType = Field(ge=1, description="number of the store")
    basket_id: T.LongType = Field(ge=1, description="number of the basket")
    product_id: T.LongType = Field(ge=1, description="number of the product")
    quantity: T.LongType = Field(ge=0, description="how many of the product")
    sales_cents: T.LongType = Field(ge=0, description="price paid for the line, in cents; 0 where a coupon paid all of it")


class Velocity(DataFrameModel):
    """A payment, and what the household paid in the hour before."""

    hour: T.TimestampType = Field(description="hour of the payment, UTC")
    household_id: T.LongType = Field(ge=1, description="number of the household that paid")
    paid_at: T.TimestampType = Field(description="time of the payment, UTC")
    store_id: T.LongType = Field(ge=1, description="number of the store")
    basket_id: T.LongType = Field(ge=1, description="number of the basket")
    lines: T.LongType = Field(ge=1, description="number of lines of the basket")
    amount_cents: T.LongType = Field(ge=0, description="sum of its lines, in cents")
    payments_trailing: T.LongType = Field(ge=1, description="payments of the household in (paid_at - 1 h, paid_at]")
    amount_trailing_cents: T.LongType = Field(description="sum of these payments, in cents")


class PaymentsHourly(DataFrameModel):
    """The payments of an hour, summed up."""

    hour: T.TimestampType = Field(description="hour of the payments, UTC")
    payments: T.LongType = Field(ge=1, description="number of payments")
    amount_cents: T.LongType = Field(ge=0, description="sum of the payments, in cents")
    households: T.LongType = Field(ge=1, description="distinct households that paid")
    repeated: T.LongType = Field(ge=0, description="payments with another one of the household in the hour before")
    most_payments_trailing: T.LongType = Field(ge=1, description="most payments of a household in a trailing hour")
    most_amount_trailing_cents: T.LongType = Field(ge=0, description="largest amount in a trailing hour, in cents")


def parse(lines: DataFrame) -> DataFrame:
    """Eleven columns without quotes, see `HEADER`; a line with more or fewer has no values."""
    parts = F.split("line", ",")
    complete = F.size(parts) == len(HEADER.split(","))

    def part(number: int) -> Column:
        return F.when(complete, parts[number])

    def whole(number: int) -> Column:
        # Through a decimal, because R writes round numbers as 4.0128e+10. What is not whole becomes NULL, not another number.
        exact = part(number).cast("decimal(30,10)")
        return F.when(exact == exact.cast("bigint"), exact.cast("bigint"))

    return lines.select(
        "*",
        F.try_to_timestamp(part(10), F.lit("yyyy-MM-dd HH:mm:ss")).alias("event_time"),
        whole(0).alias("household_id"),
        whole(1).alias("store_id"),
        whole(2).alias("basket_id"),
        whole(3).alias("product_id"),
        whole(4).alias("quantity"),
        # Half cents are rounded up, away from zero.
        (part(5).cast("decimal(18,2)") * 100).cast("bigint").alias("sales_cents"),
    )


def build_velocity(lines: DataFrame) -> DataFrame:
    """One row per payment."""
    payments = lines.groupBy("household_id", F.col("event_time").alias("paid_at"), "store_id", "basket_id").agg(
        F.count("*").alias("lines"), F.sum("sales_cents").alias("amount_cents")
    )
    hour_before = trailing(key="household_id", time="paid_at", span=SPAN)
    return payments.select(
        F.date_trunc("hour", "paid_at").alias("hour"),
        "*",
        F.count("*").over(hour_before).alias("payments_trailing"),
        F.sum("amount_cents").over(hour_before).alias("amount_trailing_cents"),
    )


def build_payments_hourly(velocity: DataFrame) -> DataFrame:
    """One row per hour with a payment."""
    return velocity.groupBy("hour").agg(
        F.count("*").alias("payments"),
        F.sum("amount_cents").alias("amount_cents"),
        F.count_distinct("household_id").alias("households"),
        F.count_if(F.col("payments_trailing") > 1).alias("repeated"),
        F.max("payments_trailing").alias("most_payments_trailing"),
        F.max("amount_trailing_cents").alias("most_amount_trailing_cents"),
    )


pipeline = Pipeline(
    name="payments",
    description="Payments of households, how many came in the hour before, and payments by hour.",
    start=HOURS.start,
    end=HOURS.end,
    source=ArchiveFile(local_uri(LINES_FILE), HOURS, header=HEADER),
    raw=RawTable(
        "payments",
        BasketLines,
        parse,
        # A product is once in a basket, so an equal line is the same line delivered twice.
        same_event=("household_id", "store_id", "basket_id", "product_id", "event_time", "quantity", "sales_cents"),
    ),
    derived=(
        DerivedTable(
            Layer.TRANSFORMED,
            "velocity",
            Velocity,
            reads="payments",
            build=build_velocity,
            window=Window(lookback=SPAN),
            key=("household_id", "paid_at", "store_id", "basket_id"),
            rules=(
                RowRule(
                    "amount within the trailing hour",
                    lambda: F.col("amount_cents") <= F.col("amount_trailing_cents"),
                    "the trailing hour includes the payment itself",
                ),
                RowRule("owned by its hour", lambda: F.date_trunc("hour", "paid_at") == F.col("hour")),
            ),
        ),
        DerivedTable(
            Layer.AGGREGATED,
            "payments_hourly",
            PaymentsHourly,
            reads="velocity",
            build=build_payments_hourly,
            rules=(
                HourRule("one row", lambda: F.count("*") == 1, "an hour is summed up in one row"),
                HourRule("households within payments", lambda: F.max("households") <= F.max("payments")),
                HourRule("repeated within payments", lambda: F.max("repeated") <= F.max("payments")),
            ),
        ),
    ),
)
