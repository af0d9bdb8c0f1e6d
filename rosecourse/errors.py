"""The package's exceptions. Each message is one line that names the bad value and the remedy."""


class RosecourseError(Exception):
    """Base of all exceptions that the package raises on purpose; the commands end with exit code 2 on it."""


class ConfigError(RosecourseError, ValueError):
    """An impossible engine, scheduler or sampling setting."""


class RequestError(RosecourseError, ValueError):
    """A request that the engine can never serve, such as an empty prompt or one longer than the context."""


class ModelError(RosecourseError):
    """A model that cannot be loaded."""


class LessonError(RosecourseError, KeyError):
    """A lesson that is not on the ladder."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class KVCacheExhausted(RosecourseError, RuntimeError):
    """No free block is left. The call that raises it has changed nothing: free something and call again."""


class BlockError(RosecourseError, RuntimeError):
    """A block id that its holder does not hold, for example freed twice."""


class SchedulerClosed(RosecourseError, RuntimeError):
    """A request to a scheduler that has been closed, or that failed."""
