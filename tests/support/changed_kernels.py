"""A module of kernels with some words of its source replaced: to show that the checks notice."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def changed(module, old, new, folder):
    """The module anew, from a file in `folder`: Triton reads the source of what it compiles, and of what it interprets.

    Its relative imports are those of the module.
    """
    source = Path(module.__file__).read_text()
    assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times: change the test, too"
    path = folder / f"changed_{Path(module.__file__).name}"
    path.write_text(source.replace(old, new))
    spec = spec_from_file_location(f"{module.__package__}.{path.stem}", path)
    other = module_from_spec(spec)
    spec.loader.exec_module(other)
    return other
