"""The payments pipeline in plain Python: no Spark, no lake, no line shared with the code that it checks.

It recomputes the published tables from the lines of the baskets, slowly and by the words of the definition. Only the standard
library is used.
"""

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import NamedTuple

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)


class Line(NamedTuple):
    """One readable line of a basket."""

    household: int
    store: int
    basket: int
    product: int
    quantity: int
    cents: int
    at: datetime


class Payment(NamedTuple):
    """The lines of one household, store, basket and time, with the household's trailing hour."""

    household: int
    at: datetime
    store: int
    basket: int
    lines: int
    cents: int
    payments_trailing: int
    cents_trailing: int


def read_lines(path: Path) -> tuple[list[Line], list[str]]:
    """The readable lines after the header, and the others as they are."""
    good: list[Line] = []
    bad: list[str] = []
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        names = next(csv.reader([next(file)]))
        for text in file:
            try:
                good.append(_line(dict(zip(names, next(csv.reader([text])), strict=True))))
            except ValueError:
                bad.append(text.rstrip("\n"))
    return good, bad


def _line(fields: dict[str, str]) -> Line:
    cents = _number(fields["sales_value"]).quantize(Decimal("0.01"), ROUND_HALF_UP) * 100
    # The times have no zone; they are taken as UTC.
    moment = datetime.fromisoformat(fields["transaction_timestamp"]).replace(tzinfo=UTC)
    return Line(
        _whole(fields["household_id"]),
        _whole(fields["store_id"]),
        _whole(fields["basket_id"]),
        _whole(fields["product_id"]),
        _whole(fields["quantity"]),
        int(cents),
        moment,
    )


def _whole(text: str) -> int:
    number = _number(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _number(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def velocity(lines: Iterable[Line]) -> Iterator[tuple[object, ...]]:
    """Rows of `transformed/velocity`, in the order of its columns."""
    for payment in payments(lines):
        yield (_hour(payment.at), *payment)


def payments_hourly(lines: Iterable[Line]) -> Iterator[tuple[object, ...]]:
    """Rows of `aggregated/payments_hourly`, in the order of its columns."""
    by_hour: defaultdict[datetime, list[Payment]] = defaultdict(list)
    for payment in payments(lines):
        by_hour[_hour(payment.at)].append(payment)
    for hour, own in sorted(by_hour.items()):
        yield (
            hour,
            len(own),
            sum(payment.cents for payment in own),
            len({payment.household for payment in own}),
            sum(payment.payments_trailing > 1 for payment in own),
            max(payment.payments_trailing for payment in own),
            max(payment.cents_trailing for payment in own),
        )


def payments(lines: Iterable[Line]) -> list[Payment]:
    """All payments of the lines, each line counted once however often it was delivered."""
    baskets: defaultdict[tuple[int, datetime, int, int], list[Line]] = defaultdict(list)
    for line in set(lines):
        baskets[line.household, line.at, line.store, line.basket].append(line)
    by_household: defaultdict[int, list[tuple[datetime, int]]] = defaultdict(list)
    for (household, at, _, _), own in baskets.items():
        by_household[household].append((at, sum(line.cents for line in own)))
    payments = []
    for (household, at, store, basket), own in baskets.items():
        hour_before = [cents for then, cents in by_household[household] if at - timedelta(hours=1) < then <= at]
        cents = sum(line.cents for line in own)
        payments.append(Payment(household, at, store, basket, len(own), cents, len(hour_before), sum(hour_before)))
    return payments


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
