"""How a model is served: where, for whom, and what a request may ask for at most."""

from dataclasses import dataclass

from retro.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Every switch of the server. The limits bound what one client can take from the others."""

    host: str = "127.0.0.1"
    """The address to listen at; any other than loopback needs a key."""
    port: int = 8000
    """The port; 0 takes one that is free."""
    hosts: tuple[str, ...] = ()
    """Names by which clients reach the server, besides loopback and --host; others are refused."""
    public_url: str = ""
    """Where links to sources begin, behind a proxy; as a client has asked, if none is given."""
    cors: tuple[str, ...] = ()
    """Origins of other sites whose pages may ask this server from a browser."""
    allow_writes: bool = False
    """Let clients with the key add and delete documents."""
    num_neighbours: int = 2
    """Neighbours of each chunk where a request does not say."""
    window: int = 0
    """Attend only to this many last tokens; 0: to all."""
    threads: int = 0
    """Threads that compute; 0: a small model leaves one core to the talking with clients, a large one takes
    all."""
    copied_tokens: int = 32
    """Warn about longer runs that stand in a source word for word."""
    max_sequences: int = 32
    """Answers that are written at the same time."""
    max_waiting: int = 64
    """Requests that wait for their turn; more are told to come back."""
    max_prompt_tokens: int = 4096
    max_tokens: int = 1024
    """Tokens of an answer."""
    max_samples: int = 8
    """Answers to one prompt, n."""
    max_stop: int = 16
    """Stop texts of a request, each of at most 256 characters."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    max_document: int = 4 << 20
    """Bytes of a document that is added."""
    max_connections: int = 512
    seconds: float = 300.0
    """From the moment a request is made to its answer's end."""
    idle_seconds: float = 30.0
    """How long a client may take to send a request, or not read what it is sent."""
    grace: float = 30.0
    """Seconds in which what is under way may end when the server is told to stop."""

    def __post_init__(self) -> None:
        least = {
            "port": 0,
            "num_neighbours": 1,
            "window": 0,
            "threads": 0,
            "copied_tokens": 1,
            "max_sequences": 1,
            "max_waiting": 0,
            "max_prompt_tokens": 1,
            "max_tokens": 1,
            "max_samples": 1,
            "max_stop": 0,
            "max_body": 1,
            "max_document": 1,
            "max_connections": 1,
            "seconds": 0.0,
            "idle_seconds": 0.0,
            "grace": 0.0,
        }
        for name, smallest in least.items():
            # Written so that it refuses NaN as well.
            if not getattr(self, name) >= smallest:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {smallest}")
        if self.port > 65535:
            raise ConfigError(f"port is {self.port}; expected at most 65535")
        if "*" in self.cors:
            raise ConfigError("cors names every site (*); expected the origins that may ask, each by itself")
        if self.host in EVERYWHERE and not self.hosts:
            raise ConfigError(
                f"host is {self.host!r}, which is every address; expected --hosts with the names by which "
                "clients reach it"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK

    def expect_key(self, key: str) -> None:
        """Refuse to serve others, or to let anyone write, without a key."""
        where = "--key-file FILE, or the environment's RETRO_KEY"
        if not self.is_local and not key:
            raise ConfigError(f"{self.host} can be reached from elsewhere; expected a key: {where}")
        if self.allow_writes and not key:
            raise ConfigError(
                f"documents may be added and deleted by whoever has a key; expected one: {where}"
            )
        if key and len(key) < 16:
            raise ConfigError(
                f"the key has {len(key)} characters; expected at least 16, which nobody guesses"
            )
