"""The form of a course: all that the lab knows of one lesson beside its rung of the ladder."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..checking.costs import Bound
from .scenes import Played, Truth

LINE = "the wrong line of the listing: its number or its text"
NO_COPIES = "a pinned buffer that is written again while a copy from it is still under way (a CPU copies at once)"
SESSIONS = "the live sessions by name: at moment 0, and after each step."
KEY_AT = "`bug.key_at(engine.kv, session, position)` is the key in layer 0 that attention reads there."
FIRST_WRONG = "the first moment at which it has a wrong token"
COMPARE_TOKENS = "Compare `token_ids` of each session in both engines at every moment."
MOMENTS = "Moment 0 is before the first step; moment n is after the n-th."


@dataclass(frozen=True, eq=False)
class Course:
    """One lesson's course: what the learner writes and what it is counted by, and a bug to hunt.

    world: the kind of part that the learner writes, and where it is tried. idea: what it is counted by. unseen: what a
    check on a CPU cannot see, in the words of a verdict; let_in: the kernels that a gate lets in, in the same words,
    where the lesson has none of its own. They run where Triton runs. beside: what a learner's part is counted beside,
    where the lesson's own would do something else on a CPU: a class, or what is seen of each step with it.

    The bug is in the lesson's part as a colleague has written it, in another style, and right but for one fault.
    source: of the colleague's file, whose last class is the part. fault: the lines of it that are to blame; mended: the
    same put right. tools: what helps to look, markdown, one item each. questions: name -> what is asked; hints: for a
    wrong answer to each. scene: plays on an engine, and yields a `dict` before the first step and after each; yields:
    what that is, in words. truth: plays it with both engines, and returns the answers. replaces: the part of
    `DecodeParts` that the colleague's class replaces; empty is the one that the exercise is about. model: makes the
    scene's, where it is not the shipped one.
    """

    world: Any  # a model of `checking.models`, or the stories about it
    idea: tuple[Bound, ...]
    symptom: str
    tools: tuple[str, ...]
    questions: Mapping[str, str]
    hints: Mapping[str, str]
    source: str
    fault: str
    mended: str
    config: EngineConfig
    scene: Callable[[InferenceEngine], Iterator[dict[str, Any]]]
    truth: Callable[[Played], Truth]
    yields: str = SESSIONS
    replaces: str = ""
    unseen: str = NO_COPIES
    let_in: str = ""
    beside: Any = None
    model: Callable[[], Model] | None = None


def small(block_size: int, batch: int, **more: Any) -> EngineConfig:
    """An engine for a scene."""
    return EngineConfig(block_size=block_size, max_batch_size=batch, max_seq_len=48, prefix_cache=False, **more)
