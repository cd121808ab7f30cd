"""Processes of a Ray cluster that answer questions about parts of a datastore, several for each part.

They outlive the command that started them, and are found by their names. Whatever one of them holds it can
open again, so one that is lost is started again by Ray, and meanwhile another of its part is asked. What
they hold and what is asked is not known here (`datastore/holding.py`).
"""

import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from retro.errors import RetroError
from retro.retrieval.engines.engine import EngineLostError, EngineSetting
from retro.stages.cluster import cause_of, connect, one_line, ray_library
from retro.stages.worker import package_version

NAMESPACE = "retro"
AT_ONCE = 16
"""Questions that one process answers at the same time."""
SLOW = 10.0
"""Seconds after which another process of the part is asked as well."""
PATIENCE = 60.0
"""Seconds for which a part may be without any process; Ray starts lost ones again meanwhile."""
PAUSE = 0.5
PLACINGS = 8
"""Times that a process is started anew to have it on another node."""
AVOIDED = 30.0
"""Seconds for which a process that was lost is asked last."""
Place = tuple[int, int]
"""Which part a process holds, and which of those that hold it it is."""


@dataclass(frozen=True)
class Request:
    """A question about something that is to be opened first, where it is not open."""

    name: str
    files: Any
    question: Any = None
    """None to have it opened."""


@dataclass(frozen=True)
class About:
    """What a process says of itself."""

    node: str
    package: str
    process: int
    """Its number there."""


class Keeper:
    """What runs in a process of the cluster."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._holder = kind()

    def about(self) -> About:
        return About(ray_library().get_runtime_context().get_node_id(), package_version(), os.getpid())

    def answer(self, name: str, question: Any) -> Any:
        return self._holder.answer(name, question)

    def hold(self, files: Any, question: Any) -> Any:
        self._holder.hold(files)
        return self._holder.answer(files.name, question)


class Actors:
    """All processes of one datastore. Several threads may ask at the same time."""

    def __init__(self, setting: EngineSetting, kind: Callable[[], Any]) -> None:
        self.setting = setting
        self.parts, self.replicas = setting.parts, setting.replicas
        self._kind = kind
        self._handles: dict[Place, Any] = {}
        self._session = ""
        """Handles are of no use in another cluster."""
        self._lost: dict[Place, float] = {}
        self._turn = itertools.count()

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """The answer of one process of each part that is named."""
        with self._cluster() as ray:
            return _Asking(self, ray, {part: self._order(part) for part in requests}, requests).answers()

    def hold(self, requests: Mapping[int, Request]) -> None:
        """Have every process of these parts open what is named."""
        every = {place: requests[place[0]] for place in self._places() if place[0] in requests}
        with self._cluster() as ray:
            _Asking(self, ray, {place: [place] for place in every}, every).answers()

    def prepare(self) -> None:
        """Have all processes run this code, those of a part on nodes of their own while there are as many."""
        with self._cluster() as ray:
            for place in self._places():
                self.handle(ray, place)  # all of them start at the same time
            for part in range(self.parts):
                taken: set[str] = set()
                for replica in range(self.replicas):
                    taken.add(self._placed(ray, (part, replica), taken))

    def _placed(self, ray: Any, place: Place, taken: set[str]) -> str:
        """The node of a process, which is another than those `taken` while there is one."""
        about = self._about(ray, place)
        for number in range(PLACINGS):
            is_crowded = about.node in taken and len(self._nodes(ray)) > len(taken)
            if not is_crowded and about.package == package_version():
                break
            # A node that is only just joining, or that Ray has not yet given up, takes no process.
            time.sleep(number * PAUSE)
            self._end(ray, place)
            about = self._about(ray, place, taken)
        return about.node

    def num_nodes(self) -> int:
        with self._cluster() as ray:
            return len(self._nodes(ray))

    def seen(self) -> list[list[str]]:
        """The address of the node of every process, by part; those that do not answer now are left out."""
        with self._cluster() as ray:
            names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
            found: list[list[str]] = [[] for _ in range(self.parts)]
            for place in self._places():
                with suppress(ValueError, ray.exceptions.RayError):
                    handle = ray.get_actor(self._name(place), NAMESPACE)
                    about = ray.get(handle.about.remote(), timeout=SLOW)
                    found[place[0]].append(names.get(about.node, about.node))
            return found

    def end(self) -> None:
        """Let all processes go; where the cluster is gone, so are they."""
        with suppress(EngineLostError), self._cluster() as ray:
            for place in self._places():
                self._end(ray, place)

    def _places(self) -> list[Place]:
        return list(itertools.product(range(self.parts), range(self.replicas)))

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        """Ray, in the cluster; whatever goes wrong with it is one line."""
        ray = ray_library()
        try:
            connect(ray, self.setting.address.partition(":")[2])
        except RetroError as error:
            raise EngineLostError(str(error)) from None
        session = ray.get_runtime_context().get_job_id()
        if session != self._session:
            self._handles, self._session = {}, session
        try:
            yield ray
        except ray.exceptions.RayTaskError as error:
            raise cause_of(error) from None
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise self.lost(error) from None

    def lost(self, reason: object) -> EngineLostError:
        # Ray tells a long story of a process, in colours; its last line says why.
        story = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", str(reason)).splitlines() if line.strip()]
        why = one_line(story[-1] if story else reason)
        return EngineLostError(
            f"the processes {self.setting} do not answer ({why}); expected one for each of "
            f"{self.parts} parts; start their cluster again"
        )

    @staticmethod
    def _nodes(ray: Any) -> list[str]:
        return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])

    def _order(self, part: int) -> list[Place]:
        """The processes of a part in turn; those that were lost just now come last."""
        turn = next(self._turn)
        places = [(part, (turn + number) % self.replicas) for number in range(self.replicas)]
        late = time.monotonic() - AVOIDED
        return sorted(places, key=lambda place: self._lost.get(place, 0.0) > late)

    def handle(self, ray: Any, place: Place, taken: Collection[str] = ()) -> Any:
        """A process by its place; where there is none it is started, on another node than those `taken`."""
        if place not in self._handles:
            part, replica = place
            nodes = self._nodes(ray)
            turned = [nodes[(part + replica + number) % len(nodes)] for number in range(len(nodes))]
            node = next((node for node in turned if node not in taken), turned[0])
            near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
            options = {
                "name": self._name(place),
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,  # what it takes is memory; cores are for tasks
                "max_restarts": -1,
                "max_concurrency": AT_ONCE,
                "scheduling_strategy": near,
            }
            self._handles[place] = ray.remote(Keeper).options(**options).remote(self._kind)
        return self._handles[place]

    def _name(self, place: Place) -> str:
        return f"{self.setting.collection} {place[0] + 1}/{self.parts} {place[1] + 1}"

    def forget(self, place: Place) -> None:
        """It was lost: it is looked for by its name again, or started."""
        self._handles.pop(place, None)
        self._lost[place] = time.monotonic()

    def _about(self, ray: Any, place: Place, taken: Collection[str] = ()) -> About:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                about: About = ray.get(self.handle(ray, place, taken).about.remote())
                return about
            except ray.exceptions.RayActorError as error:
                self.forget(place)
                if time.monotonic() > until:
                    raise self.lost(error) from None
                time.sleep(PAUSE)

    def _end(self, ray: Any, place: Place) -> None:
        self._handles.pop(place, None)
        with suppress(ValueError):  # there is none of this name
            ray.kill(ray.get_actor(self._name(place), NAMESPACE), no_restart=True)


class _Asking:
    """Requests under way: each is asked of one process, and of another of its part when that one is lost."""

    def __init__(
        self, actors: Actors, ray: Any, queues: Mapping[Any, list[Place]], requests: Mapping[Any, Request]
    ) -> None:
        """`queues` say who may answer what, the first first."""
        self._actors = actors
        self._ray = ray
        self._queues = queues
        self._requests = requests
        self._pending: dict[Any, tuple[Any, Place]] = {}
        self._answers: dict[Any, Any] = {}
        self._lost_since: dict[Any, float] = {}

    def answers(self) -> dict[Any, Any]:
        while missing := [key for key in self._requests if key not in self._answers]:
            asked = {key for key, _ in self._pending.values()}
            for key in missing:
                if key not in asked:
                    self._ask_next(key)
            done, _ = self._ray.wait([*self._pending], timeout=SLOW)
            for handle in done:
                self._take(handle)
            if not done:
                self._ask_others(missing)
        return self._answers

    def _ask_next(self, key: Any) -> None:
        place = self._queues[key].pop(0)
        self._queues[key].append(place)
        request = self._requests[key]
        self._send(key, place, "answer", request.name, request.question)

    def _send(self, key: Any, place: Place, method: str, *arguments: Any) -> None:
        actor = self._actors.handle(self._ray, place)
        self._pending[getattr(actor, method).remote(*arguments)] = key, place

    def _ask_others(self, keys: Sequence[Any]) -> None:
        """It takes long: whoever answers first will do."""
        asked = set(self._pending.values())
        for key in keys:
            if (key, self._queues[key][0]) not in asked:
                self._ask_next(key)

    def _take(self, handle: Any) -> None:
        key, place = self._pending.pop(handle)
        if key in self._answers:
            return  # another was quicker
        try:
            answer = self._ray.get(handle)
        except self._ray.exceptions.RayActorError as error:
            self._actors.forget(place)
            self._wait_for_another(key, error)
            return
        if answer is None:
            request = self._requests[key]
            self._send(key, place, "hold", request.files, request.question)
        else:
            self._answers[key] = answer

    def _wait_for_another(self, key: Any, error: Exception) -> None:
        """The first time another is asked at once; after that, those that are started again take a while."""
        now = time.monotonic()
        since = self._lost_since.setdefault(key, now)
        if now > since + PATIENCE:
            raise self._actors.lost(error)
        if now > since:
            time.sleep(PAUSE)
