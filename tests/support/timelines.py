"""A step's timeline as a GPU gives it, made up."""

import pandas as pd

from rosecourse.measure import timeline
from rosecourse.measure.timeline import HOST, STEP, Timeline

PLACE, TABLES, PLAN, FORWARD, APPEND, RUN, READ = timeline.PARTS
OLD = (TABLES, FORWARD, APPEND)  # the ranges of the steps up to 061
H2D = "roseinfer.decode_step_sessions.h2d_block_tables"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


def timeline_of(kernels, step_us=200.0, ranges=(), plain_us=100.0, **more):
    """A timeline of kernels (name, kind, start, us) and of ranges (name, start, us) in a step of this length."""
    host = [(STEP, HOST, 0.0, step_us), *((name, HOST, start, us) for name, start, us in ranges)]
    events = pd.DataFrame([*host, *kernels], columns=["name", "kind", "start_us", "us"])
    return Timeline(events.astype({"start_us": float, "us": float}), "NVIDIA H200", plain_us, **more)


def large(kernels=150, length=2800.0, appends=40, ranges=OLD, **more):
    """A step like a GPU's: kernels of 1 to 30 us, and the ranges of the host."""
    scale = length / 2800
    spans = zip(ranges, (50, 350, 1850), (250, 1400, 600), strict=False)
    host = [(name, round(start * scale, 1), round(span * scale, 1)) for name, start, span in spans]
    kinds = ["attention", "matrix", "other", "matrix", "other"]
    done = []
    for n in range(kernels):
        kind = "append" if n >= kernels - appends else "copy" if n == 0 else kinds[n % 5]
        gap = length / (kernels + 1)
        done.append((f"{kind}_kernel_{n % 9}", kind, round(gap * (n + 0.5), 1), round(min(gap, 1 + n % 30), 1)))
    return timeline_of(done, length, host, 2310.4, **{"context": 256} | more)


def layers_of_kernels(layers, early=0):
    """A step of layers of five kernels. Each runs for 5 from the end of the one before, and starts so much earlier."""
    kinds = ["attention", *["matrix"] * 4] * layers
    kernels = [(f"kernel {n}", kind, 5 * n - early, 5 + early) for n, kind in enumerate(kinds, 1)]
    return timeline_of(kernels, 5.0 * len(kernels) + 5)
