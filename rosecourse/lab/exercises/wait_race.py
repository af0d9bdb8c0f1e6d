"""A race where time says nothing: what the host waits for is counted, on a device that is as late as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...models.shape import Model
from ...request.session import InferenceSession
from ..world.events import cpu_events_by
from ..world.flight_log import FlightLog
from ..world.late_device import LateDevice, LateEvent
from ..world.late_step import LateStep
from .count_race import CountRace

SESSIONS = 3  # of the steps that are counted
STEPS = 4
CONFIG = EngineConfig(block_size=4, max_batch_size=4, max_seq_len=64, prefix_cache=False)
WHAT = (
    "how often the host waits in a decode step, on a device that does nothing before somebody waits for it. A wait for "
    "the step that was launched last leaves the device without work while the host plans the next one"
)


@dataclass(frozen=True)
class Waits:
    """Of the host in a step. idle: those that leave the device without work."""

    waits: float
    idle: float


class WaitRace(CountRace):
    """Counts are `Waits`."""

    what = WHAT
    axis = "waits in a step for the step that was launched last"
    title = "Lesson {number}: how often the device\nis left without work"

    def row(self, counted: Waits) -> dict[str, float]:
        return {"waits": counted.waits, "for the step launched last": counted.idle}

    def figure(self, counted: Waits) -> float:
        return counted.idle

    def claim(self) -> str:
        before, yours, course = self.figures
        return f"Such waits in a step, before: {before}; of your part: {yours}; of the course's: {course}."


def waits_of(parts: DecodeParts, model: Model) -> Waits:
    """What the host waits for in a greedy step of an engine with these parts, once it runs. The model is on a CPU."""
    log = FlightLog(LateDevice())
    with cpu_events_by(lambda: LateEvent(log.device)):
        engine = InferenceEngine(model, CONFIG, on_a_late_device(parts, model, log))
        scheduler, _ = _submitted(engine, [4 + n for n in range(SESSIONS)])
        for _ in range(4):
            scheduler.step()
        log.begin()
        for _ in range(STEPS):
            scheduler.step()
        seen = log.seen()
        scheduler.run()
    return Waits(seen.waits / STEPS, seen.idle / STEPS)


def completions_served(model: Model, parts: DecodeParts) -> list[list[int]]:
    """The greedy tokens of requests of mixed lengths that a scheduler serves. On a CPU they are served twice, by a
    device that is late and by one that is never late."""
    made: list[list[int]] = []
    for pace in ("late", "prompt") if model.device.type == "cpu" else ("",):
        log = FlightLog(LateDevice(pace))
        with cpu_events_by(lambda log=log: LateEvent(log.device)):  # type: ignore[misc]
            engine = InferenceEngine(model, CONFIG, on_a_late_device(parts, model, log) if pace else parts)
            scheduler, sessions = _submitted(engine, range(1, 9))
            scheduler.run()
        made += [session.completion_ids for session in sessions]
    return made


def on_a_late_device(parts: DecodeParts, model: Model, log: FlightLog) -> DecodeParts:
    """The parts, with a late device under their pipeline."""

    def pipeline(step: Any, kv: Any, config: EngineConfig) -> Any:
        return parts.pipeline(LateStep(step, log, config.max_batch_size, model.shape.vocab_size), kv, config)

    return parts.with_(pipeline=pipeline)


def _submitted(engine: InferenceEngine, lengths: Sequence[int]) -> tuple[OnlineScheduler, list[InferenceSession]]:
    scheduler = OnlineScheduler(engine)
    sessions = []
    for n, length in enumerate(lengths):
        params = SamplingParams(max_new_tokens=12 + n % 3, stop_on_eos=False)
        sessions.append(engine.new_session([3 * n + 1] * length, params))
        scheduler.submit(sessions[-1])
    return scheduler, sessions
