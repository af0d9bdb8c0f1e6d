"""The learner's delivery in an engine: its exceptions are told, and the first of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from ...config import EngineConfig
from .fault import Fault, PartIsWrong
from .learner import BUILT, Learner

METHODS = MappingProxyType({"hand_over": ("items",), "flush": (), BUILT: ("config",)})


class GuardedDelivery:
    """The learner's delivery in the place of an engine's. fault: what went wrong first; None if nothing did."""

    def __init__(self, learner: Learner, config: EngineConfig) -> None:
        self.learner = learner
        self.made = learner.build(config)
        self.fault: Fault | None = None

    def hand_over(self, items: Sequence[tuple[Any, Any]]) -> None:
        self._call("hand_over", items)

    def flush(self) -> None:
        self._call("flush")

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            self.learner.call_method(self.made, method, *arguments)
        except PartIsWrong as wrong:  # the engine may go on after an exception
            self.fault = self.fault or wrong.fault
            raise


def in_an_engine(learner: Learner) -> Callable[[EngineConfig], GuardedDelivery]:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""
    return lambda config: GuardedDelivery(learner, config)
