"""Settings for the notebooks' tests (`pytest --nbval`); a machine without nbval can still run the others."""


def pytest_configure(config):
    if hasattr(config.option, "nbval_current_env"):
        config.option.nbval_current_env = True  # the Python that runs pytest, whatever kernels the machine has
        config.option.nbval_cell_timeout = 180
