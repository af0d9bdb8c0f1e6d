"""Grouped heads, where several query heads read one K and V head: all implementations against dense attention.

On a CPU the Triton kernels go through the interpreter; on a GPU they run natively, and `-m gpu` takes them too.
"""

import re

import pytest
import torch

from rosecourse import ConfigError
from rosecourse.kernels import SparseAttention, kv_append_triton, kv_append_triton_full_batch, paged_attention_for
from rosecourse.kernels.launch import Launch
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import query_heads_per_kv_head
from tests.support.attention_cases import (
    DEVICE,
    IMPLEMENTATIONS,
    INTERPRETED,
    TOLERANCE,
    a_case,
    check,
    let_overflow_raise,
)

pytestmark = pytest.mark.grid if INTERPRETED else pytest.mark.gpu
GROUPS = [1, 2, 3, 4]
CPU_AND_FLOAT32 = [name for name in IMPLEMENTATIONS if INTERPRETED or name != "sparse"]


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    let_overflow_raise(monkeypatch)


def lengths_around(size):
    """Context lengths just below, at and just above the first multiples of a block or tile."""
    return sorted({length for edge in (size, 2 * size) for length in (edge - 1, edge, edge + 1) if length})


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("block_size", "H", "D"), [(1, 1, 5), (2, 2, 7), (4, 1, 3), (8, 3, 8), (16, 2, 5), (32, 1, 33), (64, 2, 9)]
)
def test_all_implementations_agree_around_block_and_tile_boundaries(block_size, H, D, group):
    """The tile of the Triton kernel is 64 positions: 63 to 65 are among the lengths of every block size."""
    lengths = sorted({*lengths_around(block_size)[:4], 63, 64, 65})
    args, dense = a_case(lengths, H=H, D=D, block_size=block_size, group=group, seed=group)
    results = {}
    for name in CPU_AND_FLOAT32:
        check(name, args, dense)
        results[name] = IMPLEMENTATIONS[name](*args)
    for result in results.values():
        torch.testing.assert_close(result, results["reference"], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("H", "D"), [(1, 33), (2, 1), (3, 12)])
def test_dtypes_and_head_shapes(implementation, dtype, group, H, D):
    check(implementation, *a_case([5, 17, 1], H=H, D=D, block_size=8, dtype=dtype, group=group))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_contexts_of_several_tiles(implementation, group):
    check(implementation, *a_case([130, 200], H=2, block_size=16, group=group))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_inputs_need_not_be_fused(implementation, group):
    check(implementation, *a_case([3, 9], fused=False, group=group))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_query_head_reads_the_k_and_v_of_its_group(implementation, group):
    """All values of K and V head j are j + 1, cached ones and the new one: a mean of them says who was read."""
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([3, 9], H=3, group=group)
    heads = torch.arange(1.0, 4.0, device=DEVICE)
    v.copy_(heads[None, :, None, None].expand_as(v).where(~v.isnan(), v))
    v_new = heads[None, :, None].expand_as(v_new).contiguous()
    out = IMPLEMENTATIONS[implementation](q, k, v, table, lens, longest, k_new, v_new)
    read = out[:, :, 0].round().tolist()
    assert read == [[float(h // group + 1) for h in range(3 * group)]] * 2


@pytest.mark.parametrize("group", GROUPS[1:])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sharing_a_head_is_the_same_as_having_a_copy_of_it(implementation, group):
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([3, 4, 65], group=group)
    shared = IMPLEMENTATIONS[implementation](q, k, v, table, lens, longest, k_new, v_new)
    k, v, k_new, v_new = (x.repeat_interleave(group, dim=1) for x in (k, v, k_new, v_new))
    copied = IMPLEMENTATIONS[implementation](q, k, v, table, lens, longest, k_new, v_new)
    if implementation == "triton" and INTERPRETED:  # each program reads one head, wherever it lies
        assert torch.equal(shared, copied)
    torch.testing.assert_close(shared, copied, atol=2e-6, rtol=2e-6)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, inside the interpreter
@pytest.mark.parametrize("bad", ["q", "k", "v", "k_new", "v_new"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_in_one_head_reaches_its_own_group_alone(implementation, bad):
    """NaN in K or V head 1 makes query heads 2 and 3 NaN; NaN in query head 3 makes no other one NaN."""
    names = ["q", "k", "v", "table", "lens", "longest", "k_new", "v_new"]
    args, _ = a_case([6, 9], H=3, group=2)
    clean = IMPLEMENTATIONS[implementation](*args)
    args[names.index(bad)][:, 3 if bad == "q" else 1] = float("nan")
    out = IMPLEMENTATIONS[implementation](*args)
    sick = [3] if bad == "q" else [2, 3]
    well = [h for h in range(6) if h not in sick]
    assert out[:, sick].isnan().all()
    assert torch.equal(out[:, well], clean[:, well])


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_launch(monkeypatch):
    """A kernel that is launched fails the test."""

    def launched(*_):
        raise AssertionError("launched")

    monkeypatch.setattr(Launch, "__call__", launched)


def heads(x, count):
    """The same with another number of heads, which stand in the second dimension."""
    return x[:, :1].expand(-1, count, *x.shape[2:]).contiguous()


MISFITS = {
    "q of 3 heads": (
        "q",
        lambda q: heads(q, 3),
        r"^3 query heads cannot share 2 KV heads evenly: give a multiple of 2$",
    ),
    "q of 1 head": ("q", lambda q: heads(q, 1), r"^1 query heads cannot share 2 KV heads evenly"),
    "q of other numbers": (
        "q",
        lambda q: q[..., :4],
        r"^q has heads of 4 numbers, the cache heads of 8: give the same$",
    ),
    "K of q's heads": (
        "k_new",
        lambda k: heads(k, 4),
        r"^k_new has 4 heads of 8 numbers, the cache 2 heads of 8: give",
    ),
    "K of one head": ("k_new", lambda k: heads(k, 1), r"^k_new has 1 heads of 8 numbers, the cache 2 heads of 8"),
    "V of one head": ("v_new", lambda v: heads(v, 1), r"^v_new has 1 heads of 8 numbers, the cache 2 heads of 8"),
    "V of other numbers": ("v_new", lambda v: v[..., :7], r"^v_new has 2 heads of 7 numbers, the cache 2 heads of 8"),
    "a cache of V of other heads": (
        "v",
        lambda v: heads(v, 4),
        r"^the cache of K is \[10, 2, 4, 8\], that of V \[10, 4,",
    ),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("which", "change", "message"), MISFITS.values(), ids=MISFITS)
def test_heads_that_do_not_fit_are_refused_before_a_launch(no_launch, implementation, which, change, message):
    args = dict(
        zip(["q", "k", "v", "table", "lens", "longest", "k_new", "v_new"], a_case([6, 9], group=2)[0], strict=True)
    )
    args[which] = change(args[which])
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises(ConfigError, match=message) as caught:
            IMPLEMENTATIONS[implementation](*args.values())
        assert "\n" not in str(caught.value)


def test_the_fixture_would_see_a_launch(no_launch):
    args, _ = a_case([6, 9], group=2)
    with pytest.raises(AssertionError, match="launched"):
        IMPLEMENTATIONS["triton"](*args)


@pytest.mark.skipif(not INTERPRETED, reason="for a CPU")
def test_query_heads_other_than_those_planned_for_are_refused():
    (q, _, _, table, lens, longest, k_new, v_new), _ = a_case([6, 9], group=2)
    sizes = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 8, "block_size": 4, "num_blocks": 10}
    kv = KVBlockManager(**sizes, dtype=q.dtype, device=DEVICE)
    attention = SparseAttention(kv, 6)
    attention.plan(table[None], lens, longest)
    message = "q, k_new and v_new are [(2, 4, 8), (2, 2, 8), (2, 2, 8)], planned were [(2, 6, 8), (2, 2, 8), (2, 2, 8)]"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}: plan for this batch first$"):
        attention.run(0, q, k_new, v_new)
    with pytest.raises(ConfigError, match=r"^5 query heads cannot share 2 KV heads evenly"):
        paged_attention_for(kv, 5)


def test_the_size_of_a_group():
    assert [query_heads_per_kv_head(*counts) for counts in [(12, 12), (12, 6), (32, 8), (4, 1)]] == [1, 2, 4, 4]
    for counts in [(3, 2), (1, 2), (8, 3)]:
        with pytest.raises(ConfigError, match=f"^{counts[0]} query heads cannot share {counts[1]} KV heads evenly"):
            query_heads_per_kv_head(*counts)


@pytest.mark.parametrize("kernel", ["indices", "one position"])
@pytest.mark.parametrize(
    ("key_heads", "value_heads", "name"), [(4, 2, "key_new"), (2, 4, "value_new"), (1, 2, "key_new")]
)
def test_the_append_kernels_refuse_heads_that_the_cache_does_not_have(no_launch, kernel, key_heads, value_heads, name):
    caches = torch.zeros(2, 5, 2, 4, 8, device=DEVICE)
    key, value = (torch.ones(3, count, 8, device=DEVICE) for count in (key_heads, value_heads))
    numbers = torch.arange(3, device=DEVICE)
    append = {
        "indices": lambda: kv_append_triton(*caches, key, value, numbers, numbers, numbers),
        "one position": lambda: kv_append_triton_full_batch(*caches, key, value, numbers, 1),
    }[kernel]
    with pytest.raises(ConfigError, match=f"^{name} has . heads of 8 numbers, the cache 2 heads of 8: give the same$"):
        append()
    assert not caches.any()
