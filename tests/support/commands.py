"""The commands that tests call, by their names, each with a `main` that runs it as the command line does."""

from dataclasses import dataclass

from rosecourse import __main__ as entry
from rosecourse.commands.options import Flags, command_line


@dataclass(frozen=True)
class Called:
    """A command by its name."""

    name: str

    def main(self, argv):
        """Its exit code for these flags."""
        return entry.main([self.name, *argv])

    @property
    def command(self):
        return entry.COMMANDS.commands[self.name]

    def context(self, argv):
        parent = entry.COMMANDS.make_context("rosecourse", [self.name])
        return self.command.make_context(self.name, list(argv), parent)

    def flags(self, *argv):
        """What these flags are parsed to."""
        return Flags(**self.context(argv).params)

    def command_line(self, *argv):
        """What a file says of these flags."""
        with self.context(argv) as context:
            return command_line(Flags(**context.params).settings)


ALL = {name: Called(name) for name in entry.COMMANDS.commands}
lab, desk, generate, doctor = (ALL[name] for name in ("lab", "desk", "generate", "doctor"))
benchmark_scheduler, benchmark_streaming = ALL["benchmark_scheduler"], ALL["benchmark_streaming"]
benchmark_transformers = ALL["benchmark_transformers"]
COMMANDS = {name: ALL[name] for name in ("generate", "benchmark_scheduler", "benchmark_streaming")}
