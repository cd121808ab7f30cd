"""A machine that work is planned for."""

from dataclasses import dataclass

from retro.config.checks import require


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """One of the machines that are to do the work."""

    cores: int = 64
    memory_gb: float = 512.0
    disk_tb: float = 16.0
    speed: float = 1.0
    """How many times faster a core is than one of this machine."""

    def __post_init__(self) -> None:
        numbers = (self.cores, self.memory_gb, self.disk_tb, self.speed)
        require(
            min(numbers) > 0, f"the machine has {numbers}; expected cores, memory, disk and speed above 0"
        )

    def __str__(self) -> str:
        return f"{self.cores} cores, {self.memory_gb:g} GB of memory and {self.disk_tb:g} TB of disk each"
