"""Ticker: a thread that calls a function at a pace."""

import threading

from hookline._engine.background import Ticker


def test_ticker_calls_until_it_is_closed():
    called = threading.Semaphore(0)
    ticker = Ticker("test", 0.001, called.release)
    assert [called.acquire(timeout=60) for _ in range(3)] == [True, True, True]
    ticker.close()
    ticker.close()
    assert "hookline-test" not in {thread.name for thread in threading.enumerate()}


def test_ticker_that_fails_continues_and_says_so_once(caplog):
    called = threading.Semaphore(0)

    def fail():
        called.release()
        raise RuntimeError("no such sensor")

    ticker = Ticker("test", 0.001, fail)
    assert [called.acquire(timeout=60) for _ in range(3)] == [True, True, True]
    ticker.close()
    assert [record.getMessage() for record in caplog.records] == ["test failed on its thread; it continues."]


def test_ticker_can_be_closed_by_its_own_function():
    closed = threading.Event()
    made = threading.Event()

    def close():
        made.wait(60)
        ticker.close()
        closed.set()

    ticker = Ticker("test", 0.001, close)
    made.set()
    assert closed.wait(60)
