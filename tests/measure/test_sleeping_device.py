"""The device that sleeps: real readers get its tokens, each once and in order, and its steps take their time."""

import pytest

import rosecourse as rc
from rosecourse import ConfigError
from rosecourse.measure.readers import READERS
from rosecourse.measure.sleeping_device import sleeping
from rosecourse.measure.workload import Workload, run_streaming

LESSON = rc.lesson("068")
CONFIG = rc.EngineConfig(max_batch_size=4, max_seq_len=48, prefix_cache=False)
ASKED = rc.SamplingParams(max_new_tokens=9, stop_on_eos=False)


@pytest.mark.parametrize("readers", READERS)
@pytest.mark.parametrize("parts", [LESSON.before, LESSON.after], ids=["before", "after"])
def test_tokens_count_up_whoever_reads_them(small_model, parts, readers):
    engine = rc.InferenceEngine(small_model, CONFIG, sleeping(parts, 0.0))
    workload = Workload.of([[5, 6], [7] * 5, [8] * 3, [9], [10] * 2], ASKED, readers=readers)  # one waits for a place
    run = run_streaming(engine, workload)
    for completion in run.completions:
        counted = [(completion[0] + n) % small_model.shape.vocab_size for n in range(9)]
        assert completion == counted


def test_a_step_takes_its_time(small_model):
    engine = rc.InferenceEngine(small_model, CONFIG, sleeping(LESSON.after, 0.01))
    scheduler = rc.OnlineScheduler(engine)
    scheduler.submit(engine.new_session([5, 6], ASKED))
    scheduler.run()
    ran = engine.decode_step.runner.ran
    assert len(ran) == 8  # the first token is the prefill's
    assert all(end - begin >= 0.01 for begin, end in ran)


@pytest.mark.parametrize("seconds", [-1, float("nan"), "long", 1e9])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"seconds is .*: give 0 to"):
        sleeping(LESSON.after, seconds)
