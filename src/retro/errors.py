"""The few errors a user can meet.

Each message says what was found, what was expected and what to run next.
"""


class RetroError(Exception):
    """Anything the user can mend; the command line prints it as one line and exits with 1."""


class ConfigError(RetroError, ValueError):
    """A setting that is impossible or that contradicts another one."""


class DataError(RetroError):
    """Text, tokens or neighbours that cannot be used as they are."""


class ArtifactError(RetroError):
    """A stage's folder that is missing, broken, or does not belong with the others."""


class MissingExtraError(RetroError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; expected it for this command; run: pip install 'retro-lm[{extra}]'"
        )
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str]]:
        return MissingExtraError, (self.package, self.extra)  # to come from another process
