"""What watches the fuzzer's inputs."""

import time

import pytest

from tests.fuzz.watch import alarm


class Slow:
    """Takes its time to be freed; an error that is raised meanwhile would be lost."""

    freed = False

    def __del__(self) -> None:
        time.sleep(0.1)
        Slow.freed = True


def test_an_alarm_waits_for_what_is_being_freed() -> None:
    with pytest.raises(KeyboardInterrupt), alarm(0.02, KeyboardInterrupt()):
        Slow()
        time.sleep(5)
    assert Slow.freed


def test_in_time_there_is_no_alarm() -> None:
    with alarm(0.02, KeyboardInterrupt()):
        pass
    time.sleep(0.04)
