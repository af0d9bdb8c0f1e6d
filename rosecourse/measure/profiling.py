"""Taking a timeline: one decode step of a running engine under the PyTorch profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ..checks import require
from ..engine.engine import InferenceEngine
from ..errors import ConfigError, RosecourseError
from ..request.session import InferenceSession
from .forks import fork_anew
from .one_step import finish, one_step
from .timeline import STEP, STEP_KINDS, Kernel, Range, Timeline
from .whole_runs import running_steps

APPEND = "roseinfer.kv.append_token"
OURS = ("roseinfer.", "rosecourse.", "ProfilerStep#")  # ranges; a GPU's trace repeats them above its kernels

WARMUP = 20  # steps before the profiler starts
PROFILER_WARMUP = 3  # steps that the profiler watches and forgets: its first ones are slow
# One more comes before the step that is shown: of what was launched before the profiler began it sees no kernels.
BEFORE_SHOWN = PROFILER_WARMUP + 1
BEFORE = "rosecourse.step_before"

# What the full names of kernels contain, by their kind, one of `timeline.KIND_LABELS`; the first that fits counts.
KINDS = {
    "attention": re.compile(r"attn|attend|attention|flash|fmha", re.IGNORECASE),
    "append": re.compile(r"kv_append"),
    # Since lesson 070 our own products, too.
    "matrix": re.compile(r"gemm|gemv|cutlass|cublas|nvjet|splitk|xmma|\blinear_kernel|\bhead_kernel", re.IGNORECASE),
    "copy": re.compile(r"^Mem(cpy|set)"),
    "other": re.compile(""),
}


class Event(NamedTuple):
    """Something that a profiler saw: a range or a call on the host, or a kernel, a copy or a range on the device.

    id: a launch on the host (`cudaLaunchKernel`, `cuLaunchKernelEx`, ...) and what it launched have the same.
    """

    name: str
    on_device: bool
    start_us: float
    end_us: float
    id: int = 0


def take_timeline(
    engine: InferenceEngine, sessions: Sequence[InferenceSession], step: str = "inside", warmup: int = WARMUP
) -> Timeline:
    """The timeline of the first step of a kind for which engine and profiler are warm.

    The sessions are prefilled. step: `inside`, where no session begins a block and none reads one for the first time;
    `boundary`, where all of them begin one; or `fork`, a step inside a block in which all write into a block that they
    share: for that, all but the first are freed, and before each step as many are forked from it. At least `warmup`
    steps, one of them of this kind, come before the profiler. A profiler may make a process slower for good, so measure
    times before. Raises `ConfigError` where the sessions have no room, `RequestFailed` where one ends, and
    `RosecourseError` where the profiler sees nothing.
    """
    require(step in STEP_KINDS, f"a step {step!r:.20}: give one of {', '.join(STEP_KINDS)}")
    require(warmup > 0, f"warmup is {warmup}: give 1 or more")
    require(step != "fork" or len(sessions) > 1, "a step right after a fork is one of 2 sessions or more: give them")
    sessions = list(sessions)
    fits = _steps_of_kind(engine, sessions[:1] if step == "fork" else sessions, step)
    alone = max(warmup, next(iter(fits), 0) + 1)
    wanted = next((number for number in fits if number >= alone + BEFORE_SHOWN), None)
    if wanted is None:
        raise ConfigError(f"the sessions have no room for {alone} decode steps and then one {STEP_KINDS[step]}")
    context = max(session.num_cached_tokens for session in sessions) + wanted
    seconds = [_timed_step(engine, sessions, step) for _ in running_steps(sessions, wanted - BEFORE_SHOWN)]
    plain_us = 1e6 * median([seconds[number] for number in fits if number < alone][-warmup // 2 :])
    cuda = engine.model.device.type == "cuda"
    events = _profiled_step(engine, sessions, step)
    finish(engine, sessions)
    name = torch.cuda.get_device_name(engine.model.device) if cuda else "CPU"
    timeline = timeline_of(events, context, name, plain_us, step)
    if cuda and not timeline.kernels:
        raise RosecourseError("the profiler saw no kernels: end other profilers on this GPU, and record once more")
    return timeline


def _steps_of_kind(engine: InferenceEngine, sessions: Sequence[InferenceSession], step: str) -> list[int]:
    """The numbers of the steps of a kind among those that the sessions have room for; the next step is number 0."""
    size = engine.config.block_size
    room = engine.max_seq_len - max((len(session.token_ids) for session in sessions), default=0)
    room = min([room, *(s.params.max_new_tokens - len(s.completion_ids) for s in sessions)])
    places = [{(s.num_cached_tokens + number) % size for s in sessions} for number in range(room)]
    if step == "boundary":
        return [number for number, place in enumerate(places) if place == {0}]
    return [number for number, place in enumerate(places) if min(place) > 1]


def _profiled_step(engine: InferenceEngine, sessions: list[InferenceSession], step: str) -> list[Event]:
    """Make the steps that the profiler forgets, and two more: what was seen of these; the last is `STEP`."""
    cuda = engine.model.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    plan = schedule(wait=0, warmup=PROFILER_WARMUP, active=2, repeat=1)
    with profile(activities=activities, schedule=plan, acc_events=True) as profiler:
        for number in running_steps(sessions, BEFORE_SHOWN + 1):
            _timed_step(engine, sessions, step, STEP if number == BEFORE_SHOWN else BEFORE)
            profiler.step()
    return [_event(event) for event in profiler.events() or []]


def _event(event: Any) -> Event:
    """An event of torch's profiler."""
    on_device = event.device_type != torch.autograd.DeviceType.CPU
    return Event(event.name, on_device, event.time_range.start, event.time_range.end, event.id)


def _timed_step(engine: InferenceEngine, sessions: list[InferenceSession], step: str, name: str = BEFORE) -> float:
    """The seconds of one step, as it is in a run: from lesson 067 on it ends with the tokens of the one before.

    Right after a fork nothing is in flight, because forks drain the pipeline; such a step ends with its own tokens.
    """
    if step == "fork":
        fork_anew(engine, sessions)
    with record_function(name):
        start = time.perf_counter()
        one_step(engine, sessions)
        if step == "fork":
            finish(engine, sessions)
        return time.perf_counter() - start


def timeline_of(
    events: Iterable[Event], context: int, device: str, plain_us: float, step_kind: str = "inside"
) -> Timeline:
    """The timeline of the one step in what a profiler saw.

    events: in any order, with one range `STEP` on the host. Raises `RosecourseError` where there is another number.
    """
    events = sorted(events, key=lambda event: (event.start_us, -event.end_us))
    steps = [event for event in events if event.name == STEP and not event.on_device]
    if len(steps) != 1:
        raise RosecourseError(f"the profiler saw {len(steps)} steps instead of 1: record once more")
    (step,) = steps
    inside = [event for event in events if step.start_us <= event.start_us < step.end_us]
    ranges = [e for e in inside if not e.on_device and (e is step or e.name.startswith("roseinfer."))]
    appended = _launched_by_append(inside)

    def since(moment: float) -> float:
        return round(moment - step.start_us, 1)

    def kernel(event: Event) -> Kernel:
        kind = "append" if event in appended else kind_of(event.name)
        return Kernel(short_name(event.name), kind, since(event.start_us), round(event.end_us - event.start_us, 1))

    spans = tuple(Range(e.name, since(e.start_us), round(e.end_us - e.start_us, 1)) for e in ranges)
    kernels = tuple(kernel(e) for e in inside if e.on_device and not e.name.startswith(OURS))
    return Timeline(spans, kernels, device, round(plain_us, 1), step_kind, context)


def _launched_by_append(events: Sequence[Event]) -> set[Event]:
    """What the device did for the append: told by its launch or, without one, by the append's range on the device.

    A name tells only our own kernels: the append's copies are named like any other copy.
    """
    launches = {event.id: event for event in events if not event.on_device and event.name.startswith("cu")}
    ranges = {where: [e for e in events if e.on_device == where and e.name == APPEND] for where in (False, True)}

    def in_append(event: Event) -> bool:
        known = launches.get(event.id, event)
        return any(one.start_us <= known.start_us < one.end_us for one in ranges[known.on_device])

    return {event for event in events if event.on_device and in_append(event)}


def kind_of(name: str) -> str:
    """The kind of a kernel, one of `KINDS`, by its full name alone."""
    return next(kind for kind, pattern in KINDS.items() if pattern.search(name))


def short_name(name: str) -> str:
    """A kernel's name without its return type, namespaces, template arguments and parameters; 40 characters."""
    if name.startswith(("Memcpy", "Memset")):
        return name.split("(")[0].strip()
    name = re.sub(r"\((anonymous namespace|unnamed)\)::", "", name)
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    words = re.split(r"[(<]", name)[0].split()
    return "::".join(words[-1].split("::")[-2 if words[-1].endswith("::kernel") else -1 :])[:40] if words else "?"
