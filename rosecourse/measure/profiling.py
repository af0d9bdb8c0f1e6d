"""Taking a timeline: one decode step of a running engine under the PyTorch profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ..checks import require
from ..engine.engine import InferenceEngine
from ..errors import RosecourseError
from ..request.session import InferenceSession
from .timeline import STEP, Kernel, Range, Timeline

APPEND = "roseinfer.kv.append_token"
OURS = ("roseinfer.", "rosecourse.", "ProfilerStep#")  # ranges; a GPU's trace repeats them above its kernels

WARMUP = 20  # steps before the profiler starts
KEPT = 5  # profiled steps, of which the one of median length becomes the timeline
PROFILER_WARMUP = 3  # steps that the profiler watches and forgets: its first ones are slow
STEPS = WARMUP + PROFILER_WARMUP + KEPT  # that one timeline takes

# What the full names of kernels contain, by their kind, one of `timeline.KIND_LABELS`; the first that fits counts.
KINDS = {
    "attention": re.compile(r"attn|attention|flash|fmha", re.IGNORECASE),
    "append": re.compile(r"kv_append"),
    "matrix": re.compile(r"gemm|gemv|cutlass|cublas|nvjet|splitk|xmma", re.IGNORECASE),
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
    engine: InferenceEngine, sessions: Sequence[InferenceSession], warmup: int = WARMUP, kept: int = KEPT
) -> Timeline:
    """The timeline of a step: of the last `kept` of warmup + PROFILER_WARMUP + kept steps, the one of median length.

    The sessions are prefilled. Steps in which a block begins or is first read are left out while others remain. A
    profiler may make a process slower for good, so measure times before. Raises `ConfigError` where the sessions have
    no room for so many steps, and `RosecourseError` where the profiler sees nothing.
    """
    steps = warmup + PROFILER_WARMUP + kept
    longest = engine.config.max_seq_len or engine.model.shape.context
    room = longest - max((len(s.token_ids) for s in sessions), default=0)
    require(min(warmup, kept) > 0, f"warmup is {warmup} and kept is {kept}: give 1 or more of each")
    require(room >= steps, f"a timeline takes {steps} decode steps, but the sessions have room for {room}")
    seconds = [_timed_step(engine, sessions) for _ in range(warmup)]
    plain_us = 1e6 * median(seconds[len(seconds) // 2 :])
    device = engine.model.device
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    steady = []
    plan = schedule(wait=0, warmup=PROFILER_WARMUP, active=kept, repeat=1)
    with profile(activities=activities, schedule=plan, acc_events=True) as profiler:
        for _ in range(PROFILER_WARMUP + kept):
            steady.append(all(s.num_cached_tokens % engine.config.block_size > 1 for s in sessions))
            with record_function(STEP):
                _timed_step(engine, sessions)
            profiler.step()
    events = [
        Event(e.name, e.device_type != torch.autograd.DeviceType.CPU, e.time_range.start, e.time_range.end, e.id)
        for e in profiler.events()
    ]
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    timeline = timeline_of(events, steady[PROFILER_WARMUP:], name, plain_us)
    if cuda and not timeline.kernels:
        raise RosecourseError("the profiler saw no kernels: end other profilers on this GPU, and record once more")
    return timeline


def _timed_step(engine: InferenceEngine, sessions: Sequence[InferenceSession]) -> float:
    """The seconds of one step, which ends with its tokens on the host: by then the device is done."""
    start = time.perf_counter()
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    return time.perf_counter() - start


def timeline_of(events: Iterable[Event], steady: Sequence[bool], device: str, plain_us: float) -> Timeline:
    """The timeline of the steady step of median length; if no step is steady, of all steps.

    events: what a profiler saw, in any order, with a range `STEP` on the host for each item of `steady`. Raises
    `RosecourseError` where these ranges are missing.
    """
    events = sorted(events, key=lambda event: (event.start_us, -event.end_us))
    steps = [event for event in events if event.name == STEP and not event.on_device]
    if len(steps) != len(steady):
        raise RosecourseError(f"the profiler saw {len(steps)} of {len(steady)} steps: record once more")
    chosen = [step for step, fits in zip(steps, steady, strict=True) if fits] or steps
    chosen.sort(key=lambda step: step.end_us - step.start_us)
    step = chosen[(len(chosen) - 1) // 2]
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
    return Timeline(spans, kernels, device, round(plain_us, 1))


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
