"""One folder for a project, with everything at a fixed place; and runs, opened from anywhere.

A user names one folder instead of six. A `Workspace` knows where things are and opens what is
finished; `retro.jobs` makes them. An `OpenRun` is a run together with what it is used with: a
workspace, or just a datastore with its tokenizer.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from retro import catalogue, shipped
from retro.corpus.folder import CorpusFolder
from retro.corpus.readers import FieldMap
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError
from retro.generation.sampler import Sampler
from retro.machine import best_device
from retro.model.protocol import TrainableModel
from retro.model.weights import HUB_CONFIG, RECORD, WEIGHTS
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.retriever import Passages, Retriever
from retro.run import Run
from retro.scoring.evaluate import evaluation_folder
from retro.scoring.sets import set_folder
from retro.stages.files import read_object
from retro.stages.hints import quoted
from retro.stages.stage import MANIFEST

EVALUATIONS = Path("evaluations")
"""Where results outside any workspace go, below the current folder."""


class Workspace(CorpusFolder):
    """The places of a project, and how to open what is finished."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.datastore_path = path / "datastore"
        self._datastore: Datastore | None = None

    def run_path(self, name: str) -> Path:
        """Where the run with this name is, or will be; a name that leads out of
        `runs` is refused."""
        if not is_plain_name(name):
            raise ConfigError(
                f"the run's name is {name!r}; expected a plain name for a folder below {self.path / 'runs'}, "
                "without / or \\, that neither begins with . or - nor ends in .partial or .checkpoint"
            )
        path = self.path / "runs" / name
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{path} is not UTF-8; expected a path that is, as weights are saved in no other; "
                "rename the folder, or name another"
            ) from None
        return path

    def neighbours_path(self, split: str) -> Path:
        return self.path / "neighbours" / split

    def evaluation_path(self, name: str, split: str) -> Path:
        return evaluation_folder(self.path, name, split)

    def datastore(self) -> Datastore:
        if self._datastore is None:
            self._datastore = Datastore.open(self.datastore_path)
        return self._datastore

    def neighbours(self, split: str) -> Neighbours:
        """The neighbours that were found for a split's chunks."""
        store = self.store(split)
        path = self.neighbours_path(split)
        if not path.exists():
            raise ArtifactError(
                f"{path} does not exist; expected the neighbours of {split}; "
                f"run: retro neighbours {quoted(self.path)}"
            )
        return Neighbours.open(path, store, self.datastore())

    def run(self, name: str) -> "OpenRun":
        """A run by its name."""
        return OpenRun(self.run_path(name), self)


class OpenRun:
    """A run together with its datastore and its workspace, if it has one.

    Each part is opened when first needed. So a baseline needs no datastore, and checking
    whether an evaluation is finished loads no weights.
    """

    def __init__(
        self,
        path: Path,
        work: Workspace | None = None,
        datastore: Path | None = None,
        out: Path | None = None,
    ) -> None:
        self.path = path
        self.work = work
        self.datastore_path = datastore
        """A datastore, or a workspace with one, in place of the workspace's own."""
        self.out = out
        """Where results go, in place of the workspace."""
        self._datastore: Datastore | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def run(self) -> Run:
        if not self.path.exists():
            place = quoted(self.work.path) if self.work else "WORK"
            raise ArtifactError(
                f"{self.path} does not exist; expected the folder of a run{shipped.or_named()}; "
                f"run: retro train {place} --name {quoted(self.name)}"
            )
        # An older run uses its workspace's tokenizer.
        return Run(self.path, self.work.tokenizer_path if self.work else None)

    @cached_property
    def model(self) -> TrainableModel:
        return self.run.load().to(best_device())

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

    def base_folder(self) -> Path | None:
        """The folder of the base that a fitted run stands on; None for a model of our own."""
        return catalogue.folder_of_base(self.run.base_id) if self.run.base_id else None

    @property
    def num_neighbours(self) -> int:
        """Neighbours of a chunk, or passages of a question, in training; 2 if not recorded."""
        # Runs older than the record have it in their stage's manifest.
        training = self.run.record.get("training")
        manifest = self.path / MANIFEST
        if training is None and manifest.exists():
            config = read_object(manifest, "restore it, or train the run again").get("config")
            training = config.get("training") if isinstance(config, dict) else None
        number = training.get("num_neighbours", 2) if isinstance(training, dict) else 2
        return number if isinstance(number, int) else 2

    def datastore(self) -> Datastore:
        """The datastore to retrieve from, built with the run's tokenizer and chunk length."""
        if self._datastore is None:
            self._datastore = self._open_datastore()
        return self._datastore

    def _open_datastore(self) -> Datastore:
        if self.datastore_path is not None:
            found = open_datastore(self.datastore_path)
        elif self.work is not None:
            found = self.work.datastore()
        else:
            raise ArtifactError(
                f"{self.path} is a run without a workspace; expected a datastore to retrieve from; "
                "name one, or a workspace that has one: --datastore PATH"
            )
        self.run.expect_same_tokenizer(found.tokenizer.fingerprint, str(found.path))
        # The tokenizer may fit while the chunk grid does not.
        if found.chunk_len != self.model.facts.chunk_len:
            raise ConfigError(
                f"{found.path} has chunks of {found.chunk_len} tokens; "
                f"expected the {self.model.facts.chunk_len} of {self.path}"
            )
        return found

    def store(self, split: str) -> TokenStore:
        """A split of the workspace, tokenised by the run's tokenizer."""
        if self.work is None:
            raise ArtifactError(
                f"{self.path} is a run without a workspace, and has no split {split!r}; "
                "expected documents to score; name them: --on SOURCE"
            )
        store = self.work.store(split)
        self.run.expect_same_tokenizer(store.tokenizer_fingerprint, str(store.artifact.path))
        return store

    def neighbours(self, split: str) -> Neighbours:
        """The neighbours of a split of the workspace, from the workspace's own datastore."""
        self.store(split)  # refuses a run without a workspace, or of another tokenizer
        assert self.work is not None  # or there would be no store
        if self.datastore_path is not None:
            raise ConfigError(
                f"the neighbours of {split} were found in {self.work.datastore_path}, not in "
                f"{self.datastore_path}; expected --on SOURCE with --datastore, "
                "or the workspace's own datastore"
            )
        return self.work.neighbours(split)

    def training_text(self) -> TokenStore | None:
        """The workspace's training text, to tell what was seen before; None
        without a workspace."""
        return self.store("train") if self.work is not None else None

    @property
    def is_at_home(self) -> bool:
        """Whether run and datastore are the workspace's own, so that results belong there."""
        # By the resolved path: a run of another workspace may have the same name.
        own = self.work is not None and self.path.resolve() == (self.work.path / "runs" / self.name).resolve()
        return own and self.datastore_path is None and self.out is None

    def evaluation_path(self, documents: str) -> Path:
        """Where the scores on these documents are, or will be."""
        if self.work is not None and self.is_at_home:
            return self.work.evaluation_path(self.name, documents)
        return (self.out or EVALUATIONS) / self.name / documents

    def set_path(self, source: str, fields: FieldMap | None = None) -> Path:
        """Where the tokens and neighbours of an evaluation set are, or will be."""
        if self.work is not None and self.is_at_home:
            return set_folder(self.work.path / "sets", source, fields)
        return set_folder((self.out or EVALUATIONS) / "sets", source, fields)

    def notes(self) -> list[str]:
        """What a user should know before believing a score."""
        if self.work is None or not self.work.tokens_path.exists():
            return []
        notes = []
        # Only another tokenizer is an error; other training tokens are worth a warning.
        trained_on = self.run.trained_on.get("tokens")
        if trained_on not in (None, self.work.store("train").fingerprint):
            notes += [
                f"{self.path} was trained on other tokens than {self.work.tokens_path} holds; "
                "documents that are held out here may have been trained on"
            ]
        made = self.run.record.get("datastore_version")
        if made is not None and self.is_at_home and self.work.datastore_path.exists():
            now = self.work.datastore().snapshot().version.number
            if now != made:
                notes += [
                    f"{self.path} was trained with version {made} of the datastore, which is at {now} now"
                ]
        return notes

    def sampler(
        self,
        num_neighbours: int = 2,
        retrieval: bool = True,
        passages: Sequence[str] = (),
        window: int = 0,
    ) -> Sampler:
        """A sampler that reads from the datastore or from given passages; a
        baseline needs neither."""
        # First, so that a baseline never opens a datastore.
        if not retrieval or not self.model.facts.retrieves:
            return Sampler(self.model, tokenizer=self.tokenizer, window=window)
        if passages:
            given = Passages(passages, self.tokenizer, self.model.facts.chunk_len)
            return Sampler(self.model, given, window=window)
        return Sampler(self.model, Retriever(self.datastore(), num_neighbours), window=window)


def open_run(
    place: str | Path,
    name: str = "retro",
    datastore: str | Path | None = None,
    out: str | Path | None = None,
) -> OpenRun:
    """Open what a command names: a run of a workspace, or a run's folder from anywhere.

    `place` is a workspace with a run called `name`, or a run's own folder, or the name of a model
    that comes with the package; then `name` is ignored. In a workspace, `name` may also be the folder of a
    run from elsewhere, or such a name.
    `datastore` is a datastore, or a workspace that has one, to use in place of the
    workspace's own. Results go below `out`. By default they go into the workspace if run and
    datastore are its own, and else into `evaluations` below the current folder.
    """
    place = shipped.find(place) or Path(place)
    folder = Path(out) if out is not None else None
    if is_run(place):  # checked first: a run's folder is never a workspace
        path = place
        work = _workspace_around(place)
    else:
        work = Workspace(place)
        path = _find_run(work, name)
    other = Path(datastore) if datastore is not None else None
    # Naming the workspace's own datastore changes nothing: results still belong there.
    if work is not None and other is not None and _same(other, work.path, work.datastore_path):
        other = None
    return OpenRun(path, work, other, folder)


def _workspace_around(run: Path) -> Workspace | None:
    """The workspace around a run's folder: a run that was not moved finds its
    datastore there."""
    # Resolved first: `.` and links have no useful parents.
    runs = run.resolve().parent
    around = Workspace(runs.parent)
    return around if runs.name == "runs" and around.tokenizer_path.exists() else None


def _find_run(work: Workspace, name: str) -> Path:
    """A run by its name in the workspace, or else by its path or its name among those of the package."""
    # A run of the workspace takes precedence over a folder of that name in the current one.
    inside = work.path / "runs" / name
    if is_plain_name(name) and inside.exists():
        return inside
    elsewhere = shipped.find(name) or Path(name)
    return inside if is_plain_name(name) and not is_run(elsewhere) else elsewhere


def _same(path: Path, *others: Path) -> bool:
    return any(path.resolve() == other.resolve() for other in others)


def is_run(path: Path) -> bool:
    """Whether a folder holds a model, even one older than the record."""
    return (path / RECORD).exists() or ((path / HUB_CONFIG).exists() and (path / WEIGHTS).exists())


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a single folder, neither hidden nor unfinished."""
    return (
        bool(name)
        and not set(name) & {"/", "\\", "\0"}
        # A leading dash would be read as an option on the command line.
        and not name.startswith((".", "-"))
        # Folders beside a run, which belong to it.
        and not name.endswith((".partial", ".checkpoint", ".replaced", ".removed"))
    )


def open_datastore(place: str | Path) -> Datastore:
    """The datastore of a workspace, or the one that is named."""
    # A datastore's own folder holds none of that name.
    inside = Path(place) / "datastore"
    if not inside.exists() and not (Path(place) / LEDGER).exists():
        raise ArtifactError(
            f"{place} is no finished datastore, and no workspace with one; expected either; "
            f"run: retro build {quoted(place)}"
        )
    return Datastore.open(inside if inside.exists() else place)
