"""A step's timeline as a GPU gives it, made up."""

from rosecourse.measure import timeline
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline

PLACE, TABLES, PLAN, FORWARD, APPEND, RUN, READ = timeline.PARTS
OLD = (TABLES, FORWARD, APPEND)  # the ranges of the steps up to 061
H2D = "roseinfer.decode_step_sessions.h2d_block_tables"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


def large(kernels=150, length=2800.0, appends=40):
    """A step like a GPU's: kernels of 1 to 30 us, and the ranges of the host."""
    scale = length / 2800
    spans = zip(OLD, (50, 350, 1850), (250, 1400, 600), strict=True)
    ranges = [Range(name, round(start * scale, 1), round(span * scale, 1)) for name, start, span in spans]
    kinds = ["attention", "matrix", "other", "matrix", "other"]
    done = []
    for n in range(kernels):
        kind = "append" if n >= kernels - appends else "copy" if n == 0 else kinds[n % 5]
        gap = length / (kernels + 1)
        done.append(Kernel(f"{kind}_kernel_{n % 9}", kind, round(gap * (n + 0.5), 1), round(min(gap, 1 + n % 30), 1)))
    return Timeline((Range(STEP, 0.0, length), *ranges), tuple(done), "NVIDIA H200", 2310.4, "inside", 256)
