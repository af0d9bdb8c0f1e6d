"""From what PyTorch's profiler saw of a decode step to the events of a `Timeline`."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import torch

from ..errors import RosecourseError
from .timeline import HOST, STEP

APPEND = "roseinfer.kv.append_token"
OURS = ("roseinfer.", "rosecourse.", "ProfilerStep#")  # ranges; a GPU's trace repeats them above its kernels

# What the full names of kernels contain, by their kind, one of `timeline.KIND_LABELS`; the first that fits counts.
KINDS = {
    "attention": re.compile(r"attn|attend|attention|flash|fmha", re.IGNORECASE),
    "append": re.compile(r"kv_append"),
    "matrix": re.compile(r"gemm|gemv|cutlass|cublas|nvjet|splitk|xmma|\blinear_\w*kernel|\bhead_kernel", re.IGNORECASE),
    "copy": re.compile(r"^Mem(cpy|set)"),
    "other": re.compile(""),
}


def seen_by(profiler: Any) -> pd.DataFrame:
    """A row for each event of a `torch.profiler.profile`: `name`, `on_device`, `start_us`, `end_us`, and `id`.

    A launch on the host (`cudaLaunchKernel`, `cuLaunchKernelEx`, ...) and what it launched have the same id.
    """
    rows = [
        (e.name, e.device_type != torch.autograd.DeviceType.CPU, e.time_range.start, e.time_range.end, e.id)
        for e in profiler.events() or []
    ]
    return pd.DataFrame(rows, columns=["name", "on_device", "start_us", "end_us", "id"])


def events_of(seen: pd.DataFrame) -> pd.DataFrame:
    """The events of a `Timeline`, from what `seen_by` gives, with one range `STEP` on the host.

    Raises `RosecourseError` where there is another number of them.
    """
    steps = seen[(seen.name == STEP) & ~seen.on_device]
    if len(steps) != 1:
        raise RosecourseError(f"the profiler saw {len(steps)} steps instead of 1: record once more")
    step = steps.iloc[0]
    inside = seen[(seen.start_us >= step.start_us) & (seen.start_us < step.end_us)]
    inside = inside.sort_values(["start_us", "end_us"], ascending=[True, False], kind="stable")
    kinds = inside.name.map(kind_of).mask(_launched_by_append(inside), "append").where(inside.on_device, HOST)
    ranges = ~inside.on_device & (inside.name.str.startswith("roseinfer.") | (inside.name == STEP))
    shown = inside[ranges | (inside.on_device & ~inside.name.str.startswith(OURS))]
    events = {
        "name": shown.name.map(short_name).where(shown.on_device, shown.name),
        "kind": kinds[shown.index],
        "start_us": (shown.start_us - step.start_us).round(1),
        "us": (shown.end_us - shown.start_us).round(1),
    }
    return pd.DataFrame(events).reset_index(drop=True)


def _launched_by_append(seen: pd.DataFrame) -> pd.Series:
    """What the device did for the append: told by its launch or, without one, by the append's range on the device.

    A name tells only our own kernels: the append's copies are named like any other copy.
    """
    launches = seen[~seen.on_device & seen.name.str.startswith("cu")].drop_duplicates("id").set_index("id").start_us
    launched = seen.id.map(launches)
    found = pd.Series(False, seen.index)
    for one in seen[seen.name == APPEND].itertuples():
        moment = seen.start_us.where(launched.isna()) if one.on_device else launched
        found |= (moment >= one.start_us) & (moment < one.end_us)
    return found & seen.on_device


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
