"""What a learner's code puts over functions of others is named, and undone."""

import pytest
import torch

from rosecourse import lesson
from rosecourse.lab import check
from rosecourse.lab.checks.trial import trial_of
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lessons.l035_blocks import KVBlockManager


def test_a_patch_made_where_the_class_is_defined_is_named_and_undone():
    tensor, info = torch.tensor, KVBlockManager.info
    try:

        class Patches(lesson("038").before.kv_append):
            torch.tensor = lambda *arguments, **more: tensor(*arguments, **more)
            KVBlockManager.info = lambda self, block_id: info(self, block_id)

        verdict = check(Patches, "038")
        assert "the part replaced torch.tensor" in str(verdict), verdict
        assert not verdict.passed
        assert torch.tensor is tensor
        assert KVBlockManager.info is info
    finally:
        torch.tensor, KVBlockManager.info = tensor, info
    assert check(lesson("038").after.kv_append, "038").correct


def test_a_patch_that_hides_a_method_of_the_base_is_named_and_undone():
    class Hides(lesson("038").after.kv_append):
        def __init__(self, model, kv, config):
            super().__init__(model, kv, config)
            select = torch.Tensor.index_select
            torch.Tensor.index_select = lambda *arguments: select(*arguments)

    try:
        with pytest.raises(PartIsWrong, match=r"the part replaced Tensor\.index_select"):
            trial_of(Hides, lesson("038")).learner.build(None, None, None)
        assert "index_select" not in vars(torch.Tensor)
    finally:
        if "index_select" in vars(torch.Tensor):
            del torch.Tensor.index_select
