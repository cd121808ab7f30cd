"""Two machines and one address: what is pulled and pushed, what is refused, and what a kill leaves."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import fsspec
import pytest

from retro.errors import DataError
from retro.stages.progress import Progress, SilentNarrator
from retro.stages.remote import lock
from retro.stages.remote.address import MirrorError, RemoteFolder
from retro.stages.remote.lock import LOCK, LockedError
from retro.stages.remote.mirror import Mirror
from retro.stages.remote.state import newest_state, object_names, state_name, state_numbers
from retro.stages.remote.tree import put, take_out


class KilledError(BaseException):
    """Ends a push as a kill would: nothing of ours that comes after is reached."""


@pytest.fixture(params=["memory", "file"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/bucket/work"
        return
    files = fsspec.filesystem("memory")
    yield "memory://bucket/work"
    files.store.clear()


@pytest.fixture
def machine(address: str, tmp_path: Path) -> Callable[..., Mirror]:
    def make(name: str, **settings: Any) -> Mirror:
        return Mirror(address, tmp_path / name, **settings)

    return make


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in files}
    return {name: path.read_text() for path, name in names.items() if not name.startswith(".mirror/")}


def begun(mirror: Mirror, files: dict[str, str]) -> None:
    with mirror.session(writes=True, creates=True) as folder:
        write(folder, files)


def test_another_machine_goes_on(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"text/0": "one", "text/manifest.json": "{}", "runs/x.partial/step": "1"})
    with machine("b").session(writes=True) as folder:
        assert read(folder) == {"text/0": "one", "text/manifest.json": "{}", "runs/x.partial/step": "1"}
        shutil.move(folder / "runs/x.partial", folder / "runs/x")
        write(folder, {"text/0": "two", "new/file": "n"})
    with machine("a").session() as folder:
        assert read(folder) == {
            "text/0": "two",
            "text/manifest.json": "{}",
            "runs/x/step": "1",
            "new/file": "n",
        }
        assert not (folder / "runs/x.partial").exists()


def test_only_what_is_new_is_moved(machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    upload, download = RemoteFolder.upload, RemoteFolder.download
    monkeypatch.setattr(RemoteFolder, "upload", lambda *a: (moved.append(f"up {a[2]}"), upload(*a)))
    monkeypatch.setattr(RemoteFolder, "download", lambda *a: (moved.append(f"down {a[1]}"), download(*a)))
    begun(machine("a"), {"old": "o" * 100, "copy": "o" * 100})
    assert len(moved) == 1  # the same content is one object
    with machine("b").session(writes=True) as folder:
        write(folder, {"new": "n"})
        (folder / "old").rename(folder / "renamed")
    assert [line.split()[0] for line in moved] == ["up", "down", "up"]
    moved.clear()
    with machine("a").session():
        pass
    assert len(moved) == 1  # what only has another name is copied here
    with machine("a").session():
        pass
    assert len(moved) == 1


def test_who_reads_pushes_nothing(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    with machine("b").session() as folder:
        write(folder, {"page": "mine"})
    assert set(newest_state(machine("a").remote).contents) == {"file"}
    said: list[str] = []
    with machine("b", say=said.append).session() as folder:
        assert "page" in read(folder)
    assert "page" in said[0]
    assert "retro mirror push" in said[0]


def test_an_address_without_a_workspace(machine: Callable[..., Mirror]) -> None:
    with pytest.raises(MirrorError, match=r"holds no workspace.*run: retro ingest SOURCE --out"):
        machine("a").session().__enter__()


def test_a_folder_that_is_no_mirror_is_left_alone(machine: Callable[..., Mirror], tmp_path: Path) -> None:
    begun(machine("a"), {"file": "1"})
    write(tmp_path / "b", {"file": "mine"})
    with pytest.raises(MirrorError, match="is no mirror of"), machine("b").session():
        pass
    with pytest.raises(MirrorError, match="is no mirror of"), machine("b").session(writes=True):
        pass
    b = machine("b")
    with pytest.raises(MirrorError, match="is no mirror of"), b.held():
        b.pull(drop=True)
    assert (tmp_path / "b/file").read_text() == "mine"


def test_an_error_pushes_what_was_begun(machine: Callable[..., Mirror]) -> None:
    with pytest.raises(DataError), machine("a").session(writes=True, creates=True) as folder:
        write(folder, {"runs/x.partial/step": "7"})
        raise DataError("the loss is no number")
    with machine("b").session() as folder:
        assert read(folder) == {"runs/x.partial/step": "7"}


STEPS = ("upload", "create", "remove")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_kill_within_a_push_leaves_the_former_state_or_the_new_one(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch, step: str, after: int
) -> None:
    first = {"a": "1", "b": "1", "c": "1", "gone": "x"}
    second = {"a": "2a", "b": "2b", "c": "2c", "d": "2d"}
    begun(machine("a"), first)
    done = 0
    with monkeypatch.context() as patched:
        for name in STEPS:
            patched.setattr(RemoteFolder, name, interrupted(getattr(RemoteFolder, name), name == step))

        def counted_call() -> None:
            nonlocal done
            if done == after:
                raise KilledError
            done += 1

        interrupted.calls = counted_call  # type: ignore[attr-defined]
        try:
            with machine("a").session(writes=True) as folder:
                (folder / "gone").unlink()
                write(folder, second)
        except KilledError:
            pass
    with machine("reader").session() as folder:
        assert read(folder) in (first, second)
    with machine("a").session(writes=True):
        pass  # any command that writes finishes the job
    with machine("b").session() as folder:
        assert read(folder) == second
    remote = machine("b").remote
    assert len(state_numbers(remote)) == 1
    assert len(object_names(remote)) == 4


def interrupted(call: Callable[..., Any], counts: bool) -> Callable[..., Any]:
    """The same call, before which a kill may come; from then on nothing at the address changes."""

    def called(self: RemoteFolder, *arguments: Any) -> Any:
        # Of the lock nothing is counted; that it stays is what a kill leaves.
        if LOCK not in arguments and arguments[:1] != ([LOCK],) and counts:
            interrupted.calls()  # type: ignore[attr-defined]
        return call(self, *arguments)

    return called


def test_a_lost_update_is_refused(machine: Callable[..., Mirror], tmp_path: Path) -> None:
    begun(machine("a"), {"file": "1"})
    b = machine("b")
    with pytest.raises(MirrorError, match=r"is at state 2.*expected 1.*--drop"):  # noqa: SIM117
        with b.session(writes=True) as folder:
            write(folder, {"file": "of b"})
            b.remote.remove([LOCK])  # broken by hand
            with machine("a").session(writes=True) as other:
                write(other, {"file": "of a"})
            b._lock.acquire()  # type: ignore[union-attr]
    with machine("c").session() as folder:
        assert read(folder) == {"file": "of a"}
    assert (tmp_path / "b/file").read_text() == "of b"
    with pytest.raises(MirrorError, match=r"holds file that were never pushed"), machine("b").session():
        pass
    b = machine("b")
    with b.held():
        b.pull(drop=True)
    assert read(tmp_path / "b") == {"file": "of a"}


def test_a_broken_lock_ends_the_push(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    b = machine("b")
    with pytest.raises(LockedError, match="was broken; expected to be its only writer"):  # noqa: SIM117
        with b.session(writes=True) as folder:
            write(folder, {"file": "2"})
            b.remote.remove([LOCK])
    assert newest_state(b.remote).number == 1


def test_a_second_writer_is_told_who_the_first_is(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    with machine("a").session(writes=True):
        with pytest.raises(LockedError, match=r"is being written by .* retro mirror unlock"):
            machine("b").session(writes=True).__enter__()
        with machine("b").session() as folder:  # readers are not kept out
            assert read(folder) == {"file": "1"}
        with pytest.raises(MirrorError, match=r"in use by another command.*RETRO_MIRRORS"):
            machine("a").session().__enter__()
    with machine("b").session(writes=True):
        pass


def test_a_lock_that_a_kill_left_opens_for_its_own_mirror_alone(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    killed = machine("a")
    with killed.held():
        left = killed.locked()  # held until the test ends: nobody releases it
        left.__enter__()
    with pytest.raises(LockedError):
        machine("b").session(writes=True).__enter__()
    begun(machine("a"), {"file": "2"})
    with machine("b").session(writes=True) as folder:
        assert read(folder) == {"file": "2"}


def test_readers_share_a_mirror(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    with machine("b").session():
        with machine("b").session() as folder:
            assert read(folder) == {"file": "1"}
        begun(machine("a"), {"file": "2"})
        with pytest.raises(MirrorError, match="in use and at state 1"), machine("b").session():
            pass
    with machine("b").session() as folder:
        assert read(folder) == {"file": "2"}


def test_what_arrives_damaged_is_thrown_away(machine: Callable[..., Mirror], address: str) -> None:
    begun(machine("a"), {"file": "1", "other": "2"})
    remote = machine("a").remote
    name = newest_state(remote).contents["file"].object_name
    remote.write(name, b"x")
    with pytest.raises(MirrorError, match=r"arrived with sha256 .* expected .*thrown away"):
        machine("b").session().__enter__()
    remote.write(name, b"1")
    with machine("b").session() as folder:  # what had arrived whole is not fetched again
        assert read(folder) == {"file": "1", "other": "2"}


def test_a_pull_that_was_killed_is_finished(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(machine("a"), {"a": "1", "b": "1", "gone": "1"})
    with machine("b").session():
        pass
    with machine("a").session(writes=True) as folder:
        write(folder, {"a": "2", "b": "3"})
        (folder / "gone").unlink()
    from retro.stages.remote import arrival as module

    def killed(source: Path, target: Path) -> None:
        if target.name == "b":
            raise KilledError
        put(source, target)

    put = module.put
    monkeypatch.setattr(module, "put", killed)
    with pytest.raises(KilledError):
        machine("b").session().__enter__()
    monkeypatch.undo()
    begun(machine("a"), {"a": "5", "c": "4"})  # and the address has moved on meanwhile
    with machine("b").session() as folder:
        assert read(folder) == {"a": "5", "b": "3", "c": "4"}


def test_a_reader_that_is_overtaken_reads_the_newer_state(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(machine("a"), {"a": "1", "b": "1b"})
    download = RemoteFolder.download

    def slow(self: RemoteFolder, name: str, target: Path) -> None:
        monkeypatch.undo()
        begun(machine("a"), {"a": "2", "b": "2b"})
        download(self, name, target)

    monkeypatch.setattr(RemoteFolder, "download", slow)
    with machine("b").session() as folder:
        assert read(folder) == {"a": "2", "b": "2b"}


def test_a_long_command_pushes_in_between(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    class Told(SilentNarrator):
        def progress(self, title: str) -> AbstractContextManager[Progress]:
            titles.append(title)
            return super().progress(title)

    mirror = machine("a", every=0.0, narrator=Told())
    with mirror.session(writes=True, creates=True) as folder:
        write(folder, {"runs/x.partial/step": "1", "half.tmp": "h"})
        monkeypatch.setattr(lock, "now", lambda: "a while later")
        mirror.push_if_due()
        assert json.loads(mirror.remote.read(LOCK))["seen"] == "a while later"
        with machine("b").session() as other:
            assert read(other) == {"runs/x.partial/step": "1"}
        assert not titles  # the command's own bar is on the terminal
        write(folder, {"runs/x.partial/step": "2"})
    assert titles == [f"Sending to {mirror.address}"]
    with machine("b").session() as other:
        assert read(other) == {"runs/x.partial/step": "2"}


def test_files_that_change_meanwhile_are_not_pushed_in_between(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    mirror = machine("a", every=0.0, say=said.append)
    upload = RemoteFolder.upload
    with mirror.session(writes=True, creates=True) as folder:
        write(folder, {"log": "1"})

        def growing(self: RemoteFolder, source: Path, name: str) -> None:
            upload(self, source, name)
            write(folder, {"log": "1, 2"})

        monkeypatch.setattr(RemoteFolder, "upload", growing)
        mirror.push_if_due()
        monkeypatch.undo()
        assert newest_state(mirror.remote).number == 0
        assert object_names(mirror.remote) == {}
    assert not said
    with machine("b").session() as other:
        assert read(other) == {"log": "1, 2"}


def test_a_lost_connection_in_between_is_told_and_the_work_goes_on(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    mirror = machine("a", every=0.0, say=said.append)

    def lost(self: RemoteFolder, *_: object) -> None:
        raise DataError(f"{self.address} cannot be used")

    with mirror.session(writes=True, creates=True) as folder:
        write(folder, {"log": "1"})
        monkeypatch.setattr(RemoteFolder, "upload", lost)
        mirror.push_if_due()
        monkeypatch.undo()
    assert "nothing was pushed in between" in said[0]
    assert newest_state(mirror.remote).number == 1


def test_a_sqlite_file_is_pushed_with_its_log(machine: Callable[..., Mirror]) -> None:
    """Also while somebody has it open; and what lay beside the old file is not taken for the new one's."""
    begun(machine("a"), {"file": "1"})
    session = machine("a").session(writes=True)
    with session as folder, closing(sqlite3.connect(folder / "x.sqlite")) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE t (n)")
    mirror = machine("b", every=0.0)
    with mirror.session(writes=True) as folder, closing(sqlite3.connect(folder / "x.sqlite")) as ledger:
        ledger.execute("INSERT INTO t VALUES (1)")
        ledger.commit()
        assert (folder / "x.sqlite-wal").stat().st_size
        mirror.push_if_due()
        with machine("c").session() as other, closing(sqlite3.connect(other / "x.sqlite")) as copy:
            assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    said: list[str] = []
    with machine("c", say=said.append).session() as other:
        (other / "x.sqlite-wal").write_bytes(b"stale")
        session = machine("b").session(writes=True)
        with session as folder, closing(sqlite3.connect(folder / "x.sqlite")) as ledger:
            ledger.execute("INSERT INTO t VALUES (2)")
            ledger.commit()
    with machine("c", say=said.append).session() as other:
        assert not list(other.glob("*-wal"))
        with closing(sqlite3.connect(other / "x.sqlite")) as copy:
            assert copy.execute("SELECT n FROM t").fetchall() == [(1,), (2,)]
    with machine("c", say=said.append).session() as other:
        pass
    assert not said  # reading a ledger changes nothing


def test_a_sqlite_file_may_be_closed_while_it_is_pushed(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite writes then, from its log into the file, was in the copy that is pushed already."""
    upload = RemoteFolder.upload
    with machine("a").session(writes=True, creates=True) as folder:
        ledger = sqlite3.connect(folder / "x.sqlite", check_same_thread=False)
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE t (n)")

        def closing_it(self: RemoteFolder, source: Path, name: str) -> None:
            upload(self, source, name)
            ledger.close()

        monkeypatch.setattr(RemoteFolder, "upload", closing_it)
    with machine("a").session(writes=True):
        pass
    assert newest_state(machine("a").remote).number == 1


def test_a_state_that_a_kill_left_unfinished_is_passed_over(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    whole = machine("a").remote.read(state_name(1))
    machine("a").remote.write(state_name(2), whole[:20])
    damaged = whole.replace(b'"number": 1', b'"number": 3').replace(b'"file"', b'"life"')
    machine("a").remote.write(state_name(3), damaged)
    begun(machine("a"), {"file": "2"})
    assert state_numbers(machine("a").remote) == [4]
    with machine("b").session() as folder:
        assert read(folder) == {"file": "2"}


def test_a_state_that_leads_out_of_the_folder_is_none(machine: Callable[..., Mirror]) -> None:
    begun(machine("a"), {"file": "1"})
    remote = machine("a").remote
    state = newest_state(remote)
    outside = type(state)(2, {"../outside": state.contents["file"]}, "", "")
    remote.write(state_name(2), outside.encode())
    assert newest_state(remote).number == 1


def test_an_object_of_which_a_kill_left_a_part_is_sent_again(
    machine: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(self: RemoteFolder, source: Path, name: str) -> None:
        self.write(name, source.read_bytes()[:50])
        raise KilledError

    monkeypatch.setattr(RemoteFolder, "upload", halved)
    with pytest.raises(KilledError):
        begun(machine("a"), {"file": "1" * 100})
    monkeypatch.undo()
    begun(machine("a"), {})
    with machine("b").session() as folder:
        assert read(folder) == {"file": "1" * 100}


def test_of_ten_that_publish_at_once_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any lock of theirs, which somebody may have broken."""
    address = f"file://{tmp_path}/bucket"
    begun(Mirror(address, tmp_path / "a"), {"file": "1"})
    mirrors = [Mirror(address, tmp_path / f"{number}") for number in range(10)]
    barrier = threading.Barrier(len(mirrors))
    won: list[bool] = []
    create = RemoteFolder.create

    def create_at_once(self: RemoteFolder, name: str, content: bytes) -> None:
        barrier.wait()
        create(self, name, content)

    monkeypatch.setattr(RemoteFolder, "create", create_at_once)

    def publish(mirror: Mirror) -> None:
        with mirror.held():
            mirror.pull()
            try:
                mirror._publish(dict(mirror.record.files))
                won.append(True)
            except MirrorError:
                won.append(False)

    threads = [threading.Thread(target=publish, args=(mirror,)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 9 + [True]
    assert state_numbers(mirrors[0].remote) == [2, 1]


def test_what_sqlite_kept_beside_a_file_goes_with_it(tmp_path: Path) -> None:
    """Or the log of the old file would be played into the new one."""
    old = dict.fromkeys(("x.sqlite", "x.sqlite-wal", "x.sqlite-shm"), "old")
    write(tmp_path, {**old, "new": "new"})
    put(tmp_path / "new", tmp_path / "x.sqlite")
    assert read(tmp_path) == {"x.sqlite": "new"}
    write(tmp_path, old)
    take_out(tmp_path, "x.sqlite")
    assert read(tmp_path) == {}
