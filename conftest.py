"""Settings for the notebooks' tests (`pytest --nbval`); a machine without nbval can still run the others."""

from importlib.util import find_spec

# Triton exists for Linux only.
NEED_TRITON = [
    "notebooks/061_triton_full_batch.ipynb",
    "tests/engine/test_gpu.py",
    "tests/kernels/test_grouped_heads.py",
    "tests/kernels/test_numerics.py",
    "tests/kernels/test_paged_attention.py",
    "tests/lessons/test_lessons.py",
    "tests/measure/test_counters.py",
    "tests/models/test_grouped_model.py",
]
collect_ignore = [] if find_spec("triton") else NEED_TRITON


def pytest_configure(config):
    if hasattr(config.option, "nbval_current_env"):
        config.option.nbval_current_env = True  # the Python that runs pytest, whatever kernels the machine has
        config.option.nbval_cell_timeout = 180
