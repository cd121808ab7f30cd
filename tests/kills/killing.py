"""Real commands in processes of their own, killed at random moments with all that they started."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from retro.corpus.folder import CorpusFolder
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.verify import verify
from retro.stages.stage import CARD, MANIFEST, restore
from retro.training.metrics import METRICS
from tests.kills.stages import Stage, versions

PATIENCE = 300.0
KILLS_IN_A_ROW = 3
"""So many kills at most come before a run is left to finish."""
TICK = 0.02
UNEQUAL = (CARD, MANIFEST, METRICS)
"""Files that tell speeds or times of a run."""


@dataclass
class Outcome:
    """What became of a stage."""

    kills: int = 0
    resumed: int = 0
    """Runs that finished after kills."""
    equal: int = 0
    """Of these, those that ended with what an unbroken run ends with."""


@dataclass
class Killer:
    """Runs stages one after another; the workspace of each begins as the one before left it."""

    home: Path
    wheel: Path
    rng: random.Random
    seconds: float = 0.0
    """How long the stage at hand changes files, from the first to the end of its process."""
    expected: dict[str, object] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    num_shards: int = 0
    """How many files with the names of the stage's shards an unbroken run has in one folder in the end."""

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def before(self) -> Path:
        return self.home / "before"

    @property
    def after(self) -> Path:
        return self.home / "after"

    def begin(self, stage: Stage) -> None:
        """Run the stage unbroken: for its results, its time, and what the next stage begins with."""
        stage.prepare()
        _copy(self.work, self.before)
        process, changed_at = self._start(stage)
        output = process.communicate(timeout=PATIENCE)[0]
        self.seconds = time.monotonic() - changed_at
        assert process.returncode == 0, output
        self.expected = stage.results(self.work)
        self.outcomes[stage.name] = Outcome()
        in_folders = Counter(file.parent for file in self.work.rglob(stage.shards or "no file"))
        self.num_shards = max(in_folders.values(), default=0)
        _copy(self.work, self.after)

    def end(self) -> None:
        _copy(self.after, self.work)

    def kill(self, stage: Stage, kills: int) -> None:
        """Kill the stage so many times, here and there, and finish it after every few kills."""
        outcome = self.outcomes[stage.name]
        most = outcome.kills + kills
        while outcome.kills < most:
            _copy(self.before, self.work)
            for _ in range(min(KILLS_IN_A_ROW, most - outcome.kills)):
                if not self._kill_once(stage):
                    break  # over before its moment came
                outcome.kills += 1
                self.expect_nothing_lost(stage)
                if self._is_over(stage):
                    break
            if not self._is_over(stage):
                self._finish(stage)
            outcome.resumed += 1
            found = stage.results(self.work)
            different = [
                name for name in self.expected.keys() | found if self.expected.get(name) != found.get(name)
            ]
            assert not different, f"{stage.name}: {sorted(different)} differ from those of an unbroken run"
            outcome.equal += 1

    def _kill_once(self, stage: Stage) -> bool:
        """Whether the process was killed, rather than over before."""
        process, changed_at = self._start(stage)
        if stage.shards:
            self._await_shards(stage, process)
        else:
            moment = changed_at + self.rng.uniform(0.0, self.seconds)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, moment - time.monotonic()))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode in (0, -signal.SIGKILL) or self._is_refused(stage, output), output
        if stage.changes_datastore:
            # What was said to be done must be there, whatever came after.
            said = [int(number) for number in re.findall(r"version (\d+)", output)]
            assert versions(self.work)[-1][0] >= max(said, default=0)
        return process.returncode == -signal.SIGKILL

    def _await_shards(self, stage: Stage, process: subprocess.Popen[str]) -> None:
        """Wait until some files of an unfinished folder are there, as many as chance says."""
        count = self.rng.randint(1, max(1, self.num_shards - 1))
        while process.poll() is None:
            found = [file for file in _names(self.work) if fnmatch(file.name, stage.shards)]
            if sum(".partial" in str(file.parent) for file in found) >= count:
                return
            time.sleep(TICK / 10)

    def _is_over(self, stage: Stage) -> bool:
        """Whether a stage that happens once has done all it does, though it was killed."""
        return stage.happens_once and stage.results(self.work) == self.expected

    def _finish(self, stage: Stage) -> None:
        process, _ = self._start(stage)
        output = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == 0 or self._is_refused(stage, output), output

    def _is_refused(self, stage: Stage, output: str) -> bool:
        """Whether a change was committed before the last kill, so that a second is refused in one line."""
        is_done = stage.changes_datastore and len(versions(self.work)) > len(versions(self.before))
        return is_done and "Traceback" not in output and "should not have happened" not in output

    def expect_nothing_lost(self, stage: Stage) -> None:
        """Whatever was finished before the stage began is as it was, and a datastore is whole."""
        # A datastore is looked at below, and so is what is replaced.
        aside = {self.before / name for name in ("datastore", *stage.replaces)}
        if stage.name.startswith("neighbours"):
            aside.add(self.before / "neighbours")
        # Beside a run lies its last checkpoint, which is replaced with it.
        aside |= {self.before / f"{name}.checkpoint" for name in stage.replaces if name.startswith("runs/")}
        for file in self.before.rglob("*"):
            place = file.relative_to(self.before)
            # A card is written again.
            if file.is_file() and not aside & set(file.parents) and file.name != CARD:
                assert (self.work / place).exists(), f"{place} is lost"
                assert (self.work / place).read_bytes() == file.read_bytes(), f"{place} is changed"
        for split in (self.before / "neighbours").glob("*"):
            # They are set aside while new ones are found.
            kept = [*self.work.glob(f"neighbours/{split.name}*/{MANIFEST}")]
            assert kept, f"the neighbours of {split.name} are lost"
        if stage.replaces:
            self._expect_old_or_new(stage)
        if (self.before / "datastore").exists():
            former = versions(self.before)
            assert versions(self.work)[: len(former)] == former
            datastore = Datastore.open(self.work / "datastore")
            verify(datastore, sample=5)
            datastore.close()

    def _expect_old_or_new(self, stage: Stage) -> None:
        """What is replaced is whole and of one kind, once it is opened: as before, or as at the end."""
        look = self.home / "look"
        _copy(self.work, look)  # opening may bring folders into place, which is the next command's to do
        CorpusFolder(look).corpus()
        for name in stage.replaces:
            restore(look / name)
        found = [_contents(look / name) for name in stage.replaces]
        kinds = {
            kind: [_contents(folder / name) for name in stage.replaces]
            for kind, folder in (("old", self.before), ("new", self.after))
        }
        assert found in kinds.values(), f"{stage.replaces} are neither those of before nor the new ones"

    def _start(self, stage: Stage) -> tuple[subprocess.Popen[str], float]:
        """The process, once it has changed something below the workspace or is over, and that moment."""
        before = _state(self.work)
        words = [word.replace("WORK", str(self.work)) for word in stage.command]
        runner = ["tests.kills.fetching", str(self.wheel)] if stage.name == "fetch" else ["retro"]
        process = subprocess.Popen(
            [sys.executable, "-m", *runner, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **self._environment()},
            start_new_session=True,  # a group of its own, which is killed as one
        )
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and _state(self.work) == before and time.monotonic() < deadline:
            time.sleep(TICK)
        return process, time.monotonic()

    def _environment(self) -> dict[str, str]:
        source = str(Path(__file__).parents[2] / "src")
        return {
            "PYTHONPATH": source,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RETRO_CACHE_DIR": str(self.work / "cache"),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheel.parent),
        }

    def table(self) -> list[str]:
        rows = [f"{'stage':<32} {'kills':>6} {'resumed':>8} {'equal':>6}"]
        every = Outcome()
        for name, outcome in self.outcomes.items():
            rows.append(f"{name:<32} {outcome.kills:>6} {outcome.resumed:>8} {outcome.equal:>6}")
            every.kills += outcome.kills
            every.resumed += outcome.resumed
            every.equal += outcome.equal
        return [*rows, f"{'all':<32} {every.kills:>6} {every.resumed:>8} {every.equal:>6}"]


def _state(folder: Path) -> set[tuple[str, int]]:
    """Names and times of all files, some of which may vanish meanwhile."""
    found = set()
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                found.add((f"{path}/{name}", os.stat(f"{path}/{name}").st_mtime_ns))
            except OSError:
                continue
    return found


def _names(folder: Path) -> list[Path]:
    """All files, some of which may vanish meanwhile."""
    return [Path(path) / name for path, _, files in os.walk(folder) for name in files]


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file of a finished folder but for what differs from run to run: cards and times."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in UNEQUAL)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
