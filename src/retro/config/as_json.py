"""Configs as plain JSON values, read back strictly."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from retro.errors import ConfigError

Config = TypeVar("Config")


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain JSON types."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    result: dict[str, Any] = plain(dataclasses.asdict(config))
    return result


def from_dict(cls: type[Config], values: dict[str, Any], where: str = "config") -> Config:
    """Read a config back strictly: an unknown or missing key is an error, never ignored.

    A class whose fields have changed says in `upgrade` how JSON from before is to be read.
    """
    _require(isinstance(values, dict), f"{where} is {values!r}; expected an object")
    upgrade = getattr(cls, "upgrade", None)
    values = upgrade(values) if upgrade else values
    hints = typing.get_type_hints(cls)
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(fields))
    _require(not unknown, f"{where} has unknown keys {unknown}; expected only {sorted(fields)}")
    arguments = {key: _coerce(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where} is incomplete: {error}") from None
    except (ArithmeticError, MemoryError) as error:
        raise ConfigError(f"{where} holds an impossible number: {error or 'it is too large'}") from None


def _coerce(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) is types.UnionType:
        # Of unions only `Config | None` occurs.
        return None if value is None else _coerce(typing.get_args(hint)[0], value, where)
    if dataclasses.is_dataclass(hint):
        _require(isinstance(value, dict), f"{where} is {value!r}; expected an object")
        return from_dict(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is dict:
        _require(isinstance(value, dict), f"{where} is {value!r}; expected an object")
        return {key: _coerce(typing.get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if typing.get_origin(hint) is tuple:
        _require(isinstance(value, (list, tuple)), f"{where} is {value!r}; expected a list")
        kind = typing.get_args(hint)[0]
        return tuple(_coerce(kind, item, f"{where}[{number}]") for number, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        matches = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
        _require(matches, f"{where} is {value!r}; expected {hint.__name__}")
    return value


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
