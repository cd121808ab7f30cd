"""Search engines: what finds the nearest keys in place of this machine's own indexes."""

from retro.retrieval.engines.engine import Engine, EngineError, EngineLostError, EngineSetting, Holding
from retro.retrieval.engines.opening import LOCAL, open_engine

__all__ = ["LOCAL", "Engine", "EngineError", "EngineLostError", "EngineSetting", "Holding", "open_engine"]
