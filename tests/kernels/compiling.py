"""Kernels compiled for a GPU that is not there, by Triton's own compiler.

That is done in a process of its own: Triton decides between its compiler and its interpreter when it is imported.
"""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class Binary:
    """In the place of a compiled kernel: it is compiled when somebody asks what became of it."""

    def __init__(self, kernel: Any, arguments: tuple, target: GPUTarget, options: dict, constants: dict) -> None:
        self.kernel, self.arguments, self.target = kernel, arguments, target
        self.options, self.constants = options, constants

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the compiler made of it, or what it says to it: to be written as JSON."""
        log = io.StringIO()
        try:
            with redirect_stdout(log):
                made = triton.compile(self._source(), target=self.target, options=self.options)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {
            "constants": self.constants,
            "parameters": [parameter.name for parameter in self.kernel.params][: len(self.arguments)],
            "shared": made.metadata.shared,
            "spilled": max(map(int, SPILLED.search(log.getvalue()).groups())),
            "ptx": made.asm["ptx"],
        }

    def _source(self) -> ASTSource:
        signature, aligned = {}, {}
        for number, (parameter, argument) in enumerate(zip(self.kernel.params, self.arguments, strict=False)):
            if isinstance(argument, torch.dtype):
                signature[parameter.name] = f"*{TYPES[argument]}"
                if not parameter.do_not_specialize_on_alignment:
                    aligned[(number,)] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(argument, float) else "i32"
        signature |= dict.fromkeys(self.constants, "constexpr")
        return ASTSource(self.kernel, signature, self.constants, aligned)


def compile_for(capability: int) -> None:
    """From now on kernels are made for a GPU of this compute capability (86 is 8.6): those that are not cached."""
    target = GPUTarget("cuda", capability, 32)

    def warmup(kernel: Any, *arguments: Any, grid: Any, num_warps: int, launch_pdl: bool = False, **constants: Any):
        """In the place of `JITFunction.warmup`, which wants a GPU."""
        options = {"num_warps": num_warps} | ({"launch_pdl": True} if launch_pdl else {})
        return Binary(kernel, arguments, target, options, constants)

    triton.JITFunction.warmup = warmup


def answer_all(answer: Callable[[Any], Any]) -> None:
    """In the other process: answer each question."""
    for question in sys.stdin:
        print(json.dumps(answer(json.loads(question))), flush=True)


class Compiler:
    """The other process, which runs a module that calls `answer_all`."""

    def __init__(self, module: str, directory: Path) -> None:
        """directory: empty, for what it leaves behind."""
        own = {"TRITON_CACHE_DIR": str(directory), "TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1"}
        self._errors = directory / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**os.environ, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, question: Any) -> Any:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the compiler's process has ended: {self._errors.read_text()}"
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
