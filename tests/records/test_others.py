"""data/others.csv: every row is whole, and a damaged file is named."""

import pytest

from rosecourse import RosecourseError
from rosecourse.records import others
from rosecourse.records.others import COLUMNS, other_engines
from rosecourse.records.published import published_figures


def test_every_engine_has_a_version_a_configuration_and_a_date():
    rows = other_engines()
    assert list(rows) == list(COLUMNS)
    assert set(rows.workload) == {"A", "C"}
    assert not rows.duplicated(["engine", "configuration", "workload"]).any()
    assert rows.date.str.fullmatch(r"\d{4}-\d\d-\d\d").all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("engine,", "name,", 1), "it has no column 'engine'"),
        (lambda text: text.replace("vLLM,0.26.0", "vLLM,", 1), "a row that lacks something"),
        (lambda text: text.replace(",C,", ",Z,"), "it has the workload 'Z', which is none of A, B"),
        (lambda text: text.replace("40400", "many"), "many"),
        (lambda text: text.replace("40400,40400", "40400,40399"), "not in order"),
        (lambda text: text.replace("40400,40400", "nan,nan"), "float"),
        (lambda text: text.replace("40400,40400", "0,40400"), "not positive"),
        (lambda text: "", "No columns"),
    ],
)
def test_a_damaged_file_is_named(monkeypatch, tmp_path, change, message):
    damaged = tmp_path / "others.csv"
    damaged.write_text(change(others.OTHERS.read_text()))
    monkeypatch.setattr(others, "OTHERS", damaged)
    with pytest.raises(RosecourseError) as caught:
        other_engines()
    assert str(caught.value).startswith(f"{damaged} cannot be read (")
    assert message in str(caught.value)


def test_a_missing_file_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(others, "OTHERS", tmp_path / "others.csv")
    with pytest.raises(RosecourseError, match=r"others\.csv cannot be read .*: restore it from git"):
        other_engines()


def test_the_articles_engine_has_the_figures_that_are_published():
    published = published_figures().query("lesson == 'newest' and metric == 'total throughput'")
    rows = other_engines().query('engine == "the articles\' engine"')
    assert sorted({*rows.lowest, *rows.highest}) == sorted(published.after)
