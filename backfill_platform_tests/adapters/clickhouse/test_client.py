"""The connection: what ClickHouse refuses, what does not answer, and what is never sent twice."""

import socket
import threading
from datetime import UTC, datetime

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.errors import UsageError, WarehouseError, WarehouseUnavailable


def test_a_refusal_says_what_we_were_doing_and_what_clickhouse_said(warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseError) as refusal:
        warehouse.command("SELECT\n nothing FROM\n nowhere.at_all", doing="counting visits")
    said = str(refusal.value)
    assert said.startswith("counting visits: Code: ")
    assert "nowhere" in said
    assert "\n" not in said
    assert "http" not in said


def test_a_server_that_does_not_answer_is_transient() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(WarehouseUnavailable, match=r"connecting to the warehouse at http://127\.0\.0\.1"):
            Warehouse(f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}")


def test_a_time_out_is_transient(warehouse_url: str) -> None:
    hasty = Warehouse(warehouse_url, statement_seconds=1)
    with pytest.raises(WarehouseUnavailable, match="may still be running"):
        hasty.rows("SELECT sleep(2.5)", doing="waiting")
    hasty.close()


def test_clickhouse_own_time_out_is_transient(warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseUnavailable, match="TIMEOUT_EXCEEDED"):
        warehouse.rows(
            "SELECT sleepEachRow(0.1) FROM numbers(25) SETTINGS max_block_size = 1, max_execution_time = 1", doing="waiting"
        )


@pytest.mark.parametrize("url", ["localhost:8123", "clickhouse://localhost:9000", "http://"])
def test_a_text_that_is_not_a_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="must look like http"):
        Warehouse(url)


def test_parameters_are_values_whatever_they_contain(warehouse: Warehouse) -> None:
    text = "it's a \\ {trap:String} %(s)s `;--\n\t"
    assert warehouse.rows("SELECT {text:String}", parameters={"text": text}, doing="asking") == [(text,)]


def test_times_come_back_aware(warehouse: Warehouse) -> None:
    moment = datetime(1998, 4, 30, 22, 0, 0, 123457, tzinfo=UTC)
    ((read,),) = warehouse.rows("SELECT toDateTime64('1998-04-30 22:00:00.123457', 6, 'UTC')", doing="asking")
    assert read == moment


def test_one_connection_serves_many_threads(warehouse: Warehouse) -> None:
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        ((answers[number],),) = warehouse.rows("SELECT {n:Int64} + sleep(0.05)", parameters={"n": number}, doing="asking")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: number for number in range(8)}


def test_what_is_prepared_is_sent_once_and_again_after_it_failed(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    command = warehouse.command

    def counting(sql: str, *, doing: str) -> None:
        sent.append(sql)
        command(sql, doing=doing)

    monkeypatch.setattr(warehouse, "command", counting)
    for _ in range(2):
        warehouse.prepare(("SELECT 1", "SELECT 2"), doing="testing")
    assert sent == ["SELECT 1", "SELECT 2"]
    for _ in range(2):
        with pytest.raises(WarehouseError):
            warehouse.prepare(("SELECT 1", "no SQL"), doing="testing")
    assert sent[2:] == ["no SQL", "no SQL"]
