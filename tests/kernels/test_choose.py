"""The kernel that ends a greedy step, against torch's operations."""

import pytest
import torch

from rosecourse.decode.sampling import NO_TOKEN, argmax
from rosecourse.kernels import choose
from rosecourse.kernels.launch import Launch
from tests.kernels.harness import DEVICE, MARKS, ROUNDING, pairwise

pytestmark = MARKS
INF, NAN = float("inf"), float("nan")


def rows_of_logits(V, dtype):
    """Rows of every kind that there is [B, V]: ties, all equal, tokens that are ruled out, NaN and infinities."""
    generator = torch.Generator().manual_seed(V)

    def normal():
        return torch.randn(V, generator=generator) * 3

    def with_(*numbers, row=None):
        row = normal() if row is None else row.clone()
        for number in numbers:
            row[torch.randint(V, (), generator=generator)] = number
        return row

    nothing, zeros = torch.full((V,), -INF), torch.where(normal() > 0, 0.0, -0.0)
    kinds = [normal(), normal().round(), normal().clamp(max=0), torch.zeros(V), zeros, with_(-INF), with_(NAN)]
    kinds += [with_(INF), with_(NAN, INF), with_(NAN, -INF), nothing, with_(-7.0, row=nothing)]
    kinds += [with_(NAN, row=nothing), with_(INF, row=nothing), torch.full((V,), NAN)]
    kinds += [torch.full((V,), float(torch.finfo(dtype).min)), normal().round() - 1e4]
    for place in (0, -1):  # the first and the last number of a row
        kinds.append(normal())
        kinds[-1][place] = 99.0
    return torch.stack(kinds).to(DEVICE, dtype)


def ends_a_step(logits):
    """As torch's operations would: the tokens, the rows' next inputs and lengths, and nothing besides."""
    B = len(logits)
    state = torch.arange(4 * (B + 3), device=DEVICE).view(4, B + 3) + 2**40  # the columns of rows, some of them
    state[1, :B] = torch.arange(B, device=DEVICE) % 2
    token_ids, live, context_lens = (state[column, :B] for column in range(3))
    right, was = state.clone(), logits.clone()
    best = argmax(logits)
    right[0, :B] = best.clamp(min=0)
    right[2, :B] += live
    tokens = choose(logits, live, token_ids, context_lens)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == best.tolist(), "other tokens"
    assert state.tolist() == right.tolist(), "other inputs or lengths, or a column that is none of its own"
    assert torch.equal(logits.isnan(), was.isnan())
    assert torch.equal(logits.nan_to_num(), was.nan_to_num())


@pairwise(
    dtype=[*ROUNDING],
    V=[1, 2, 15, 17, 211, 8189, 8191, 8192, 8193, 20001],  # around one tile and two
    before=[0, 2],
    behind=[0, 3, 45],
    filling=[1e4, INF, NAN, -INF],
)
def test_tokens_lengths_and_nothing_besides(dtype, V, before, behind, filling):
    """What stands around a row is not of the vocabulary."""
    logits = rows_of_logits(V, dtype)
    assert (argmax(logits) == NO_TOKEN).sum() >= 7
    wide = torch.full((len(logits), before + V + behind), filling, dtype=dtype, device=DEVICE)
    ends_a_step(wide[:, before : before + V].copy_(logits))


def test_the_first_of_equals_wherever_they_are():
    """Numbers of one lane of a tile, and of other lanes: the first is not always the one of the lowest lane."""
    places = [(5, 8192 + 5), (7, 8192 + 3), (8192 + 3, 16384 + 1), (0, 19999), (8191, 8192), (16383, 16384)]
    logits = torch.zeros(len(places), 20000, device=DEVICE)
    for row, (first, second) in zip(logits, places, strict=True):
        row[[first, second]] = 1.0
    ends_a_step(logits)
    assert argmax(logits).tolist() == [first for first, _ in places]


def numbers_read(logits):
    """How many numbers of each row a launch is told to read."""
    launches = []
    integers = [torch.zeros(len(logits), dtype=torch.int64, device=DEVICE) for _ in range(3)]
    with Launch.handed_to(lambda launch, grid, arguments: launches.append((launch, grid))):
        choose(logits, *integers)
    ((launch, grid),) = launches
    stride, read, V, _ = launch.constants
    assert (grid, stride, V) == ((len(logits), 1, 1), logits.stride(0), logits.shape[1])
    return read


@pytest.mark.parametrize(("B", "V"), [(1, 1), (2, 15), (5, 16), (1, 17), (5, 211)])
def test_no_number_behind_the_storage_is_read(V, B):
    """The last row ends where its storage ends, or up to 20 numbers before that."""
    for behind in range(20):
        for before in (0, 1):
            buffer = torch.zeros(B, before + V + behind, dtype=torch.float16, device=DEVICE)
            for logits in (buffer[:, before : before + V], buffer[-1:, before : before + V]):
                read = numbers_read(logits)
                assert V <= read < V + 16
                assert logits.storage_offset() + (len(logits) - 1) * logits.stride(0) + read <= buffer.numel()


def test_rows_of_a_padded_vocabulary_are_read_in_whole_pieces():
    """Otherwise each number would be read by itself: 50,257 is odd."""
    assert numbers_read(torch.zeros(3, 50_432, dtype=torch.float16, device=DEVICE)[:, :50_257]) == 50_272
    assert numbers_read(torch.zeros(3, 50_257, dtype=torch.float16, device=DEVICE)) == 50_257
    assert numbers_read(torch.zeros(1, 64, device=DEVICE).expand(3, -1)) == 64
