"""The commands that the tests of commands call, by their names."""

from rosecourse.commands import benchmark_scheduler, benchmark_streaming, generate

COMMANDS = {
    "generate": generate,
    "benchmark_scheduler": benchmark_scheduler,
    "benchmark_streaming": benchmark_streaming,
}
