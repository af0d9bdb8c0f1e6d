"""The lab reads the insides of two kinds of cache, and refuses others by their names."""

from __future__ import annotations

import pytest

from rosecourse import ConfigError, lesson
from rosecourse.config import EngineConfig
from rosecourse.engine.engine import InferenceEngine
from rosecourse.lab.checking.layout import ONE_TABLE, PER_LAYER, layout_of
from rosecourse.lab.course.scenes import key_at


class OtherCache:
    block_size = 4


def test_an_engines_own_are_given_back(small_model):
    engine = InferenceEngine(small_model, EngineConfig(), lesson("061").after)
    assert layout_of(engine.kv) is PER_LAYER
    assert layout_of(InferenceEngine(small_model, EngineConfig()).kv) is ONE_TABLE


def test_another_cache_is_refused_by_name(small_model):
    with pytest.raises(ConfigError, match="the lab reads caches of the class KVBlockManager, not OtherCache"):
        layout_of(OtherCache())
    engine = InferenceEngine(small_model, EngineConfig(), lesson("061").after)
    session = engine.new_session([1, 2, 3])
    engine.prefill([session])
    with pytest.raises(ConfigError, match="not OtherCache"):
        key_at(OtherCache(), session, 0)
