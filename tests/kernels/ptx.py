"""What a compiled kernel does with the memory that it was given, in which order: read from its PTX."""

import re
from typing import NamedTuple

WAIT, LAUNCH = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
INSTRUCTION = re.compile(r"(@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*?);")
TOUCH = ("ld.", "st.", "atom.", "red.", "cp.async", "prefetch")  # memory
REGISTER = re.compile(r"%[a-z]+\d+")
BRACKETS = re.compile(r"\[([^]]*)\]")
PARAMETER = re.compile(r"_param_(\d+)")


class Access(NamedTuple):
    """An instruction that touches global memory, and the kernel's pointers that its address was made of."""

    operation: str
    pointers: frozenset[str]


def accesses(ptx: str, parameters: list[str]) -> list[Access | str]:
    """In the order in which they stand, with WAIT and LAUNCH between them.

    parameters: the names of all, in their order; those of pointers end with _ptr. Lines are read once, from top to
    bottom: of an address that changes in a loop is known what it was made of before.
    """
    names = dict(enumerate(parameters))
    made_of: dict[str, frozenset[str]] = {}  # register -> pointers
    found: list[Access | str] = []
    for line in ptx.splitlines():
        if line.strip().startswith((WAIT, LAUNCH)):
            found.append(line.split(";")[0].strip())
        elif match := INSTRUCTION.match(line.split("//")[0].strip()):
            condition, operation, operands = match.groups()
            target, _, rest = operands.partition(",")
            if operation.startswith("ld.param"):
                name = names.get(int(PARAMETER.search(rest)[1]), "scratch_ptr")
                made_of[target.strip()] = frozenset({name} if name.endswith("_ptr") else ())
            elif operation.startswith(TOUCH) and ".global" in operation:
                address = REGISTER.findall(BRACKETS.findall(operands)[-1])
                found.append(Access(operation, _together(made_of, address)))
            elif not operation.startswith("ld"):  # computed
                sources = REGISTER.findall(operands if condition else rest)
                made_of |= dict.fromkeys(REGISTER.findall(target), _together(made_of, sources))
    return found


def _together(made_of: dict[str, frozenset[str]], registers: list[str]) -> frozenset[str]:
    return frozenset().union(*[made_of.get(register, frozenset()) for register in registers])
