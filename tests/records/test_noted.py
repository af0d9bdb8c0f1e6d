"""Figures that were noted once: whole, and in agreement with each other and with what the articles say of them."""

import math

import pytest

from rosecourse import LESSONS, LessonError
from rosecourse.measure.compare import HEADLINES
from rosecourse.measure.metrics import UNITS
from rosecourse.measure.samples import figure_name
from rosecourse.records.noted import noted, prototype_facts, published_figures, recorded_prefills

ARTICLES = ["036", "038", "059", "060", "061"]


def pair(lesson, metric, statistic):
    rows = published_figures(lesson).query(f"source == 'article {lesson}'")
    (found,) = rows.query("metric == @metric and statistic == @statistic")[["before", "after"]].values
    return found.tolist()


@pytest.mark.parametrize(
    ("lesson", "metric", "statistic", "stated"),
    [
        ("038", "decode throughput", "mean", "2.31x"),
        ("038", "TPOT", "mean", "-56.6%"),
        ("060", "TPOT", "p50", "-2.0%"),
        ("060", "total throughput", "mean", "+2.1%"),
        ("061", "total throughput", "mean", "+1.58%"),
    ],
)
def test_what_an_article_states_follows_from_its_figures(lesson, metric, statistic, stated):
    before, after = pair(lesson, metric, statistic)
    digits = len(stated.rstrip("x%").split(".")[1])
    change = after / before
    assert (f"{change:.{digits}f}x" if stated.endswith("x") else f"{100 * (change - 1):+.{digits}f}%") == stated
    assert stated in published_figures(lesson).stated.tolist()


def test_published_figures_are_whole_and_of_one_lesson():
    rows = published_figures()
    assert set(rows.lesson) == {*ARTICLES, "newest"}
    assert all((rows.source == f"article {lesson}").any() for lesson in ARTICLES)
    assert rows.after.gt(0).all()
    assert all(value > 0 or math.isnan(value) for value in rows.before)
    assert dict(zip(rows.metric, rows.unit, strict=True)).items() <= UNITS.items()
    assert not rows.duplicated(["lesson", "workload", "metric", "statistic", "gpu"]).any()
    assert set(published_figures("059").lesson) == {"059"}
    assert published_figures("best").equals(published_figures(LESSONS[-1].number))
    assert published_figures("035").empty
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        published_figures("042")


@pytest.mark.parametrize("table", ["threads", "pads", "graphs"])
def test_a_table_of_prefills_has_figures_and_provenance(table):
    found = recorded_prefills(table)
    assert (found > 0).all(axis=None)
    for said in ("NVIDIA H200", "2026-11-25", "torch 2.11.0, triton 3.6.0", "commit a5fa52a"):
        assert said in found.attrs["provenance"]


def test_noted_verdicts_and_facts_are_of_their_figures():
    assert [len(prototype_facts(number)) for number in ("070", "071")] == [5, 0]
    rows = noted("false_alarms")
    assert rows.figure.tolist() == [figure_name(*one) for one in HEADLINES]
    assert (rows["with control"] <= 0.05 * rows.comparisons).all()
    assert (rows["without control"] <= rows.comparisons).all()
