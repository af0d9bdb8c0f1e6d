"""Figures that were noted once: whole, and in agreement with each other and with what the articles say of them."""

import math

import pytest

from rosecourse import LESSONS, LessonError
from rosecourse.measure.compare import HEADLINES
from rosecourse.measure.metrics import UNITS
from rosecourse.measure.samples import figure_name
from rosecourse.records.noted import noted, prototype_facts, published_figures, recorded_prefills

ARTICLES = ["036", "038", "059", "060", "061"]


def article(lesson):
    rows = published_figures(lesson)
    return rows[rows.source == f"article {lesson}"]


def pair(lesson, metric, statistic):
    (found,) = article(lesson).query("metric == @metric and statistic == @statistic")[["before", "after"]].values
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
def test_what_an_article_says_of_its_figures_follows_from_them(lesson, metric, statistic, stated):
    before, after = pair(lesson, metric, statistic)
    digits = len(stated.rstrip("x%").split(".")[1])
    change = after / before
    assert (f"{change:.{digits}f}x" if stated.endswith("x") else f"{100 * (change - 1):+.{digits}f}%") == stated
    assert stated in article(lesson).stated.tolist()


def test_the_statements_on_the_original_code_follow_from_its_figures():
    rows = published_figures().query("source.str.startswith('original code') and stated != ''")
    assert [f"{row.before / row.after:.{len(row.stated) - 3}f}x" for row in rows.itertuples()] == ["1.037x", "2.64x"]
    assert rows.stated.tolist() == ["1.037x", "2.64x"]


@pytest.mark.parametrize("lesson", ["036", "038"])
@pytest.mark.parametrize("which", ["decode", "total"])
# A mean of rates is not the rate of a mean: for three runs that differ by 1 % it is above it by some 1e-5.
@pytest.mark.parametrize(("statistic", "tolerance"), [("p50", 2e-6), ("mean", 1e-4)])
def test_throughput_times_seconds_is_64_requests_of_512_tokens(lesson, which, statistic, tolerance):
    seconds, rates = pair(lesson, f"{which} time", statistic), pair(lesson, f"{which} throughput", statistic)
    for time, rate in zip(seconds, rates, strict=True):
        assert time * rate == pytest.approx(64 * 512, rel=tolerance)


@pytest.mark.parametrize("lesson", ["036", "038"])
def test_latency_is_the_first_token_and_511_more(lesson):
    for ttft, tpot, latency in zip(
        *(pair(lesson, metric, "mean") for metric in ("TTFT", "TPOT", "latency")), strict=True
    ):
        assert ttft + 511 * tpot == pytest.approx(latency, abs=511 * 0.005 + 0.02)


@pytest.mark.parametrize("lesson", ["059", "060"])
def test_percentiles_are_in_order_and_all_256_requests_take_turns(lesson):
    for metric in ("TPOT", "ITL"):
        values = [pair(lesson, metric, statistic) for statistic in ("p50", "p95", "p99")]
        assert values == sorted(values)
    for tpot, rate in zip(pair(lesson, "TPOT", "p50"), pair(lesson, "total throughput", "mean"), strict=True):
        assert tpot / 1e3 * rate == pytest.approx(256, rel=0.01)  # tokens between two of a request


def test_the_three_runs_of_061_average_to_what_it_says():
    for side in range(2):
        runs = [pair("061", "total throughput", f"run {n}")[side] for n in (1, 2, 3)]
        assert round(sum(runs) / 3, 2) == pair("061", "total throughput", "mean")[side]
        for n, rate in enumerate(runs, start=1):  # 127 steps and a prefill make 128 tokens
            assert 128 * 128 / rate * 1e3 / 128 == pytest.approx(pair("061", "TPOT", f"run {n} p50")[side], rel=0.06)


def test_every_row_is_whole_and_every_lesson_with_an_article_has_rows():
    rows = published_figures()
    assert set(rows.lesson) == {*ARTICLES, "newest"}
    assert all(len(article(lesson)) for lesson in ARTICLES)
    assert rows.after.gt(0).all()
    assert all(value > 0 or math.isnan(value) for value in rows.before)
    assert article("036").before.notna().all()
    assert dict(zip(rows.metric, rows.unit, strict=True)).items() <= UNITS.items()
    assert set(rows.gpu) == {"the author's (not named)", "NVIDIA H200"}
    assert not rows.duplicated(["lesson", "workload", "metric", "statistic", "gpu"]).any()


def test_rows_of_one_lesson():
    assert set(published_figures("059").lesson) == {"059"}
    assert published_figures("best").equals(published_figures(LESSONS[-1].number))
    assert published_figures("035").empty
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        published_figures("042")


@pytest.mark.parametrize("table", ["threads", "pads", "graphs"])
def test_every_table_of_prefills_has_its_figures_and_its_provenance(table):
    found = recorded_prefills(table)
    assert (found > 0).all(axis=None)
    for said in ("NVIDIA H200", "2026-11-25", "torch 2.11.0, triton 3.6.0", "commit a5fa52a"):
        assert said in found.attrs["provenance"]


def test_facts_of_the_prototype_are_those_of_one_lesson():
    assert [len(prototype_facts(number)) for number in ("070", "071", "072")] == [5, 10, 0]


def test_false_verdicts_are_noted_of_the_figures_of_a_table_and_are_few():
    rows = noted("false_alarms")
    assert rows.figure.tolist() == [figure_name(*one) for one in HEADLINES]
    assert (rows["with control"] <= 0.05 * rows.comparisons).all()
    assert (rows["without control"] <= rows.comparisons).all()
