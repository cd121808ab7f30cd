"""Errors as clients see them: OpenAI's shape, and nothing of this machine."""

import re

from retro.errors import ArtifactError, RetroError
from retro.serving import schema
from retro.serving.jobs import BusyError, StoppingError, TimeOutError
from retro.serving.memory import UNREADABLE, GoneError

PATHS = re.compile(r"(?<![\w/])(?:[A-Za-z]:)?(?:[/\\][\w.@%+~-]+){2,}")
"""What looks like the name of a file on this machine."""
FAULT = "something went wrong here; it is written in the server's log"
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}


class ProblemError(RetroError):
    """Something that a client is told."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, wait: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.wait = wait
        """Seconds after which to try again."""

    def body(self) -> schema.Error:
        return schema.Error(
            error=schema.ErrorBody(
                message=self.message,
                type=KINDS.get(self.status, "server_error"),
                param=self.param,
                code=self.code,
            )
        )


def problem_of(error: Exception, param: str | None = None) -> ProblemError:
    """What a client is told about an error. What is no fault of the client's is not described."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, BusyError):
        return ProblemError(429, str(error), code="queue_full", wait=error.seconds)
    if isinstance(error, StoppingError):
        return ProblemError(503, str(error), code="stopping", wait=5)
    if isinstance(error, TimeOutError):
        return ProblemError(504, str(error), code="timeout")
    if isinstance(error, (GoneError, ArtifactError, *UNREADABLE)):
        message = str(error) if isinstance(error, GoneError) else "the datastore cannot be used at the moment"
        return ProblemError(503, message, code="datastore_unavailable", wait=5)
    if isinstance(error, RetroError):
        return ProblemError(400, without_paths(str(error)), param)
    return ProblemError(500, FAULT)


def without_paths(message: str) -> str:
    """A message without what to run, which is for whoever sits here, and without names of files."""
    return PATHS.sub("…", message.split("; run:")[0])
