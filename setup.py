"""Which files the package has; all else is in pyproject.toml. Its model and recordings lie beside it, in data/."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rosecourse*"]), "rosecourse.data"],
    package_dir={"rosecourse.data": "data"},
    package_data={"rosecourse": ["py.typed"], "rosecourse.data": ["**/*"]},
)
