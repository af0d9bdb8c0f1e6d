"""What is compiled once, and what is left to Triton's JIT. Neither needs a GPU: the kernel is none."""

import torch
import triton

from rosecourse.kernels.compile import compiled
from rosecourse.kernels.launch import Launch


class Kernel(triton.JITFunction):
    """Its binary is what it was asked to compile."""

    def __init__(self):
        pass

    def warmup(self, *arguments, **options):
        return arguments, options


def test_a_kernel_is_compiled_once_for_its_types():
    launch = compiled(Kernel(), [torch.float16, 0], num_warps=2, launch_pdl=True, H=3, D=8)
    assert isinstance(launch, Launch)
    assert launch.kernel == ((torch.float16, 0), {"grid": (1,), "num_warps": 2, "launch_pdl": True, "H": 3, "D": 8})
    assert launch.constants == (3, 8)


def test_a_kernel_for_unaligned_tensors_is_left_to_the_jit():
    kernel = Kernel()
    launch = compiled(kernel, [torch.float16, 0], aligned=False, H=3, D=8)
    assert launch.kernel is kernel
    assert launch.constants == (3, 8)
