"""data/prefills.csv: every table is whole, says where it is from, and a damaged file is named."""

import pytest

from rosecourse import RosecourseError
from rosecourse.records import prefills
from rosecourse.records.prefills import TABLES, recorded_prefills


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_all_its_figures_and_its_provenance(table):
    found = recorded_prefills(table)
    assert (found > 0).all(axis=None)
    for said in ("NVIDIA H200", "2026-11-25", "torch 2.11.0, triton 3.6.0", "commit a5fa52a"):
        assert said in found.attrs["provenance"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("table,", "name,", 1), "it has no column 'table'"),
        (lambda text: text.replace("NVIDIA H200", "", 1), "a row that lacks something"),
        (lambda text: text.replace("pads,", "pillows,"), "its tables are not threads, pads, graphs"),
        (lambda text: text.replace("179.39", "many"), "many"),
        (lambda text: text.replace("179.39", "0"), "not positive"),
        (lambda text: "", "No columns"),
    ],
)
def test_a_damaged_file_is_named(monkeypatch, tmp_path, change, message):
    damaged = tmp_path / "prefills.csv"
    damaged.write_text(change(prefills.PREFILLS.read_text()))
    monkeypatch.setattr(prefills, "PREFILLS", damaged)
    with pytest.raises(RosecourseError) as caught:
        recorded_prefills("threads")
    assert str(caught.value).startswith(f"{damaged} cannot be read (")
    assert message in str(caught.value)
