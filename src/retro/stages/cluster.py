"""Work on several machines, as tasks of a Ray cluster; and the choice of where work runs.

A task that is lost, because its process or its machine is gone, is done again elsewhere by Ray itself. Only
when that has failed several times does the command end; what was finished by then is kept by its stage.
"""

import importlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from retro.errors import MissingExtraError, RetroError
from retro.stages.executor import Executor, LocalExecutor, expect_workers, in_order
from retro.stages.worker import call, terms_for

Item = TypeVar("Item")
Result = TypeVar("Result")

TRIES = 3
"""How often a task is done again after it was lost. An error of the work itself is not tried again."""
ANSWER_SECONDS = 10.0
"""A cluster that does not answer for so long is not there."""
START = "start one with: ray start --head, and join it from the others with: ray start --address HOST:6379"


class RayExecutor:
    """Tasks of a Ray cluster: that of RAY_ADDRESS, one that runs here, or a new one of this machine alone.

    At most `num_workers` tasks run at once, by default one for each core of the cluster. Its machines need
    this package, and the workspace and its sources under the same paths: `Terms` says how that is checked.
    """

    def __init__(self, num_workers: int = 0) -> None:
        self.num_workers = expect_workers(num_workers)
        self._works: dict[Path, None] = {}
        self._sources: dict[Path, None] = {}
        self._ray = ray_library()

    def needs(self, work: Path | None, *sources: Path) -> None:
        if work is not None:
            self._works[work] = None
        self._sources |= dict.fromkeys(sources)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        ray = self._ray
        connect(ray)
        workers = self.num_workers or int(ray.cluster_resources().get("CPU", 1))
        pending: deque[Any] = deque()
        with terms_for(self._works, self._sources) as terms:
            # Terms and function are sent to the cluster once, however many items there are.
            task = ray.remote(num_cpus=1, max_retries=TRIES)(call)
            submit = partial(task.remote, ray.put(terms), ray.put(function))
            try:
                yield from in_order(items, submit, ray.get, pending, workers)
            except ray.exceptions.RayTaskError as error:
                raise cause_of(error) from None
            except ray.exceptions.RayError as error:
                raise RetroError(
                    f"Ray lost a task {TRIES + 1} times ({one_line(error)}); expected enough memory and "
                    "machines that stay; what is finished is kept; run the same command again"
                ) from None
            finally:
                # Whatever is still pending after an error, or when the caller stopped asking, is not needed.
                for handle in pending:
                    ray.cancel(handle)

    def close(self) -> None:
        """Nothing is kept here: the cluster has processes of its own."""


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": LocalExecutor, "ray": RayExecutor}


def open_executor(name: str, num_workers: int, default: int = 0) -> Executor:
    """An executor by its name. `default` stands for 0 workers of this machine: 1 is this process alone."""
    if name == "local":
        return LocalExecutor(num_workers or default)
    return EXECUTORS[name](num_workers)


def ray_library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingExtraError("ray", "scale") from None


def connect(ray: Any, address: str = "") -> None:
    """Join a cluster, once for this process: that of RAY_ADDRESS where no address is given."""
    _leave_standard_output_alone()
    if ray.is_initialized():
        _expect_joined(ray, address)
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    _expect_answer(address)
    try:
        ray.init(address or None, include_dashboard=False, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
        name = f"the Ray cluster {address}" if address else "Ray"
        raise RetroError(
            f"{name} could not be joined ({one_line(error)}); expected a cluster with the versions of "
            f"Ray and Python that are here, and its token if it asks for one; {START}"
        ) from None


def _leave_standard_output_alone() -> None:
    """Have Ray say on standard error that a process was lost: the command's answer, as JSON, has the other.

    There is no setting for it. A Ray without this function is left as it is.
    """
    worker: Any = importlib.import_module("ray._private.worker")
    said = getattr(worker, "print_to_stdstream", None)
    if said is None or getattr(said, "is_of_retro", False):
        return

    def say(data: dict[str, Any], *others: Any, **named: Any) -> None:
        said({**data, "is_err": True}, *others, **named)

    say.is_of_retro = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = say


def _expect_joined(ray: Any, address: str) -> None:
    """A process can be in one cluster at a time; it goes by the address of its first machine."""
    joined = ray.get_runtime_context().gcs_address
    if address and _numeric(address) != _numeric(joined):
        raise RetroError(
            f"this process is in the Ray cluster {joined}; expected {address}; use one of them for both: "
            f"run: export RAY_ADDRESS={address}"
        )


def _numeric(address: str) -> str:
    """With the number of a host in place of its name, if that is known."""
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        host = socket.gethostbyname(host)
    return f"{host}:{port}"


def _expect_answer(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would ask for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        return  # none, or one in words such as `auto`, which Ray knows how to find
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RetroError(
            f"no Ray cluster answers at {address} ({one_line(error)}); "
            f"expected the address of its first machine; {START}"
        ) from None


def cause_of(error: Any) -> BaseException:
    """The error of our own function, as a local pool would raise it."""
    cause = error.cause
    # Where a worker cannot even import what it is to call, the error comes from Ray's own code.
    if isinstance(cause, ImportError) or "failed to import" in str(cause):
        last = one_line(str(cause).strip().splitlines()[-1])
        return RetroError(
            f"a worker cannot import what it is to run ({last}); expected this package on every machine; "
            "install it there, for the same Python"
        )
    return cause if isinstance(cause, BaseException) else RetroError(one_line(error))


def one_line(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} …"
