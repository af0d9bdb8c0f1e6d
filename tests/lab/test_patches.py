"""What a learner's code puts over functions of others is named, and undone."""

import torch

from rosecourse import lesson
from rosecourse.kv.blocks import KVBlockManager
from rosecourse.lab import check


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
    assert check(lesson("038").after.kv_append, "038").passed
