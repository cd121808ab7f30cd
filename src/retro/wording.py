"""Numbers in the sentences that people read."""


def counted(number: int, thing: str, things: str = "") -> str:
    """A number and what it counts: `1 document`, `1,200 documents`, `3 copies` with a plural of its own."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
