"""What configs check about themselves: one line for what was found and what was expected."""

from typing import Any

from retro.errors import ConfigError, DataError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def require_positive(config: Any, *names: str) -> None:
    """Each is more than 0, and small enough for every library to take it."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{name} is {value}; expected a positive number")
        require(value < 1 << 63, f"{name} is {value}; expected less than 2^63")


def require_one_of(name: str, value: str, *choices: str) -> None:
    require(value in choices, f"{name} is {value!r}; expected {' or '.join(choices)}")


def require_between(config: Any, low: float, high: float, *names: str) -> None:
    """Each is at least `low` and less than `high`; NaN is neither."""
    for name in names:
        value = getattr(config, name)
        require(low <= value < high, f"{name} is {value}; expected {low:g} ≤ {name} < {high:g}")


def require_seed(config: Any, name: str) -> None:
    """A seed that every library takes."""
    value = getattr(config, name)
    require(0 <= value < 1 << 63, f"{name} is {value}; expected 0 or more, and less than 2^63")


def require_utf8(what: str, text: str) -> None:
    """Text that UTF-8 can hold.

    Half a surrogate pair is legal in a Python string, JSON can spell it, and a command line that is not
    UTF-8 arrives as such; but no tokenizer, database or file takes it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what}'s character {error.start + 1} is half a surrogate pair; "
            "expected text that UTF-8 can hold"
        ) from None


def require_layers(name: str, layers: tuple[int, ...], depth: int) -> None:
    require(
        # Rising, and no layer twice.
        list(layers) == sorted(set(layers)) and all(1 <= layer <= depth for layer in layers),
        f"{name} is {list(layers)}; expected rising layer numbers between 1 and the depth, {depth}",
    )
