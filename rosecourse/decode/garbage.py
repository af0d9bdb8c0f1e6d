"""Python's garbage collector, kept from what it would disturb: measurements, and captures of CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_spared() -> Iterator[None]:
    """In here the collector looks at new objects alone.

    A full collection looks at every object of torch and transformers: some hundreds of thousands, in which no thread
    runs for 200 to 300 ms. It comes in one run of many, and looks like a fault of what is measured. (vLLM freezes what
    is there when its engine has started.)
    """
    if gc.get_freeze_count():  # somebody has done it already, and does not expect it undone
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """In here nothing is collected, and afterwards as before, also where an interrupt ends it.

    For short work whose steps are compared one by one, where the collector would stop at the same step of every turn;
    and for captures of CUDA graphs, which what it frees would break: an event that waits for the device, say.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
