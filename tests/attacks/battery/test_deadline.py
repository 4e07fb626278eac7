"""Limits of time: work that takes too long is stopped, work that ends in time is left alone."""

import threading
import time

import pytest

from attacks.battery.deadline import OutOfTime, time_limit


def test_work_that_takes_too_long_is_stopped_even_if_it_survives_errors():
    began = time.monotonic()

    def careless():
        while time.monotonic() - began < 30:
            try:
                time.sleep(0.001)
            except Exception:
                continue

    with pytest.raises(OutOfTime), time_limit(0.05):
        careless()
    assert time.monotonic() - began < 25


def test_work_that_ends_too_late_is_given_up_though_the_clocks_thread_had_no_turn(monkeypatch):
    real = threading.Timer
    monkeypatch.setattr(threading, "Timer", lambda seconds, stop: real(60, stop))
    with pytest.raises(OutOfTime), time_limit(0.01):
        time.sleep(0.05)
    with time_limit(30):
        pass


def test_work_that_ends_in_time_is_left_alone():
    with time_limit(0.2):
        done = sum(range(10))
    began = time.monotonic()
    while time.monotonic() - began < 0.4:
        time.sleep(0.01)
    assert done == 45


def test_errors_pass_through():
    with pytest.raises(ZeroDivisionError), time_limit(5.0):
        _ = 1 // 0
