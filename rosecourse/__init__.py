"""rosecourse: a small, exact LLM inference engine, and the lessons that make its decode step fast."""

from importlib import import_module
from typing import Any

# The public names. A module is imported when one of its names is first used: importing the package costs next to
# nothing, and `rosecourse doctor` runs even where packages are missing.
_NAMES_IN = {
    "config": ["EngineConfig", "SamplingParams"],
    "decode": ["BEST", "DecodeParts"],
    "engine.engine": ["Generation", "InferenceEngine"],
    "errors": [
        "BlockError",
        "ConfigError",
        "EngineBusy",
        "KVCacheExhausted",
        "LessonError",
        "LogitsError",
        "ModelError",
        "QueueFull",
        "RequestError",
        "RequestFailed",
        "RosecourseError",
        "SchedulerClosed",
    ],
    "kv.blocks": ["KVBlockInfo", "KVBlockManager"],
    "lessons": ["BASELINE", "LESSONS", "lesson"],
    "models.load": ["load_model", "random_model"],
    "engine.offline": ["OfflineScheduler"],
    "engine.scheduler": ["OnlineScheduler"],
    "request.session": ["InferenceSession"],
    "engine.streaming": ["AsyncTokenStream", "SchedulerManager", "TokenReader", "TokenStream"],
}
MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

__all__ = sorted(MODULE_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'rosecourse' has no attribute {name!r}")
    return getattr(import_module(f"rosecourse.{MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
