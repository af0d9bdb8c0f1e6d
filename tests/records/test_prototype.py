"""Facts of a prototype: as the file has them, in words, and only of the lesson that was asked for."""

from rosecourse.records import prototype
from rosecourse.records.prototype import prototype_facts


def test_facts_are_those_of_one_lesson_in_words(tmp_path, monkeypatch):
    file = tmp_path / "prototype.csv"
    file.write_text("lesson,what,lowest,highest,unit\n070,one,36,36,of 40\n071,another,-1,0.5,% longer\n")
    monkeypatch.setattr(prototype, "PROTOTYPE", file)
    assert prototype_facts("071").to_dict() == {prototype.HEAD: {"another": "-1 to 0.5 % longer"}}
    assert prototype_facts("072").empty


def test_the_lessons_have_such_facts():
    assert len(prototype_facts("070")) == 5
    assert len(prototype_facts("071")) == 10
