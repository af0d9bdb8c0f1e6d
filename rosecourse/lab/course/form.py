"""The form of a course: all that the lab knows of one lesson beside its rung of the ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class KernelCode:
    """What an exercise takes from a file of kernels, which is read and not imported: it is there without Triton too.

    module: the file's name in `rosecourse/kernels`, without `.py`; empty for an exercise without kernels. functions:
    those that the learner writes -> their bodies until then. kernels: of the solution -> how they are decorated there;
    in the exercise they are empty. launches: functions of the solution that launch them -> their bodies there.
    """

    module: str = ""
    functions: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    launches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exercise:
    """What is said about an exercise; its code comes from the ladder's sources.

    name: of the learner's class. difficulty: 1 to 3. minutes: of a reader who has come so far. text: markdown above
    the cell. docstring: of the class. look: the first hint, a question. do: the second, the approach in words. wanted:
    imports that only the written part uses. kernel_code: what it takes from a file of kernels. begins_as: the class
    that the learner gets; None is the part before the lesson, which is called in the same way. ends_as: the class that
    the solution is, and that a learner's is counted beside; None is the part after the lesson. beside: kernels of
    `operation_kernels` that stand in front of these two. given: the class that the learner's derives from, with
    `methods` to write -> their bodies until then; empty is the body before the lesson.
    """

    name: str
    difficulty: int
    minutes: int
    text: str
    docstring: str
    look: str
    do: str
    wanted: tuple[str, ...] = ()
    kernel_code: KernelCode = KernelCode()
    begins_as: type | None = None
    ends_as: type | None = None
    beside: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    given: type | None = None
    methods: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bug:
    """A bug to hunt: the lesson's part as a colleague has written it, in another style, and right but for one fault.

    source: of the colleague's file, whose last class is the part. fault: the lines of it that are to blame; mended: the
    same put right. tools: what helps to look, markdown, one item each. questions: name -> what is asked; hints: for a
    wrong answer to each. scene: plays on an engine, and yields a `dict` before the first step and after each; yields:
    what that is, in words. truth: plays it with both engines, and returns the answers. part: of `DecodeParts`, which
    the colleague's class replaces; empty is the one that the exercise is about.
    """

    minutes: int
    symptom: str
    tools: tuple[str, ...]
    questions: Mapping[str, str]
    hints: Mapping[str, str]
    source: str
    fault: str
    mended: str
    config: EngineConfig
    scene: Callable[[InferenceEngine], Iterator[dict[str, Any]]]
    truth: Callable[[Played, Model], Truth]
    explanation: str
    yields: str = SESSIONS
    part: str = ""


@dataclass(frozen=True, eq=False)
class Course:
    """One lesson's course.

    number: of its rung. world: the kind of part that the learner writes, and where it is tried. idea: what it
    is counted by. unseen: what a check on a CPU cannot see, in the words of a verdict; let_in: the kernels that a gate
    lets in, in the same words, where the lesson has none of its own. They run where Triton runs.
    """

    number: str
    world: Any  # a model of `checking.models`, or the stories about it
    exercise: Exercise
    bug: Bug
    idea: tuple[Bound, ...] = ()
    unseen: str = NO_COPIES
    let_in: str = ""

    def part(self, parts: Any) -> Any:
        """The class in some `DecodeParts` that is of the kind that the learner writes; None where they have none."""
        return getattr(parts, self.world.part)

    def begins_as(self, before: Any) -> Any:
        """The class that the exercise begins as. before: the `DecodeParts` before the lesson."""
        return self.exercise.begins_as or self.part(before)

    def ends_as(self, after: Any) -> Any:
        """The class that the exercise ends as. after: the `DecodeParts` after the lesson."""
        return self.exercise.ends_as or self.part(after)
