"""The package's exceptions. Each message is one line that names the bad value and the remedy."""


class RosecourseError(Exception):
    """Base of all exceptions that the package raises on purpose; the commands end with exit code 2 on it."""


class ConfigError(RosecourseError, ValueError):
    """An impossible engine, scheduler or sampling setting."""


class RequestError(RosecourseError, ValueError):
    """A request that can never be served, such as an empty prompt, or a session that a call is not for."""


class ModelError(RosecourseError):
    """A model that cannot be loaded."""


class LessonError(RosecourseError, KeyError):
    """A lesson that is not on the ladder."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class KVCacheExhausted(RosecourseError, RuntimeError):
    """No free block is left. The call that raises it has changed nothing: free something and call again."""


class BlockError(RosecourseError, RuntimeError):
    """A block, or a table of blocks, that its holder does not hold, for example freed twice; it has changed nothing."""


class LogitsError(RosecourseError, ArithmeticError):
    """Logits that no token can be chosen from: NaN, +inf, or nothing but -inf. No session has taken a token yet.

    rows: of the logits, that is which sessions of the batch.
    """

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        super().__init__(
            f"the logits of the sessions {rows} of the batch are NaN or infinite: look for NaN in the model's weights, "
            "or load it in float32"
        )


class RequestFailed(RosecourseError, RuntimeError):
    """A request of a benchmark that ended before it had all its tokens. The run has no figure then."""


class EngineBusy(RosecourseError, RuntimeError):
    """A thread that uses an engine while another one does, or a manager has it. It has changed nothing."""


class SchedulerClosed(RosecourseError, RuntimeError):
    """A request to a scheduler that has been closed, or that failed."""


class QueueFull(RosecourseError, RuntimeError):
    """A request to a scheduler whose queue is as long as it may be. It has changed nothing: submit again later."""
