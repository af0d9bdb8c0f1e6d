"""Operations with kernels that are wrong, each with its cause and a piece of what is said; and right ones that cost."""

import torch
import torch.nn.functional as F

from tests.support.kernel_ops import Base, InPieces
from tests.support.product_kernels import embedded, one_row


def faulty(name, fault):
    return type(name, (Base,), {"fault": fault})


NoBias = faulty("NoBias", "no bias")
NoMean = faulty("NoMean", "no mean")
NoEps = faulty("NoEps", "no eps")
Unbiased = faulty("Unbiased", "unbiased")
MeanOfSquares = faulty("MeanOfSquares", "squares")
PaddingHasADistance = faulty("PaddingHasADistance", "centred padding")
ExactGelu = faulty("ExactGelu", "erf")
QuickGelu = faulty("QuickGelu", "quick")
PastTheRow = faulty("PastTheRow", "past the row")
WholeBlocks = faulty("WholeBlocks", "whole blocks")
NoRowMask = faulty("NoRowMask", "no row mask")
HalfPrecision = faulty("HalfPrecision", "half")


class OneRowOfTiles(Base):
    def grid(self, rows, columns):
        return 1, super().grid(rows, columns)[1]


class LastTileLeftOut(Base):
    def grid(self, rows, columns):
        return super().grid(rows, columns)[0], max(1, columns // self.tile[1])


class NeverSetBack(InPieces):
    set_back = False


class NoShift(Base):
    """The norm's bias is not folded in."""

    def fold(self, norm, linear):
        weight, bias, colsum = super().fold(norm, linear)
        plain = linear.bias if not isinstance(linear, torch.Tensor) else torch.zeros_like(bias)
        return weight, plain, colsum


class SumsOfThePlainWeights(Base):
    """The sums of columns are those of the weights before the norm was folded in."""

    def fold(self, norm, linear):
        weight, bias, _ = super().fold(norm, linear)
        return weight, bias, super().fold(None, linear)[2]


class SquareAsItIs(Base):
    """What is square is not turned."""

    def fold(self, norm, linear):
        weight, bias, colsum = super().fold(norm, linear)
        square = norm is None and weight.shape[0] == weight.shape[1]
        return (linear.weight if square else weight), bias, colsum


class GeluEverywhere(Base):
    def norm_linear(self, x, norm, linear):
        return self.norm_linear_gelu(x, norm, linear)


class ByShape(Base):
    """What is kept of the weights is found by their shape."""

    def key(self, norm, linear):
        return linear.shape if isinstance(linear, torch.Tensor) else linear.weight.shape


class ByTurns(Base):
    """The how manieth of its shape in a step says which weights are wanted."""

    def embed(self, *given):
        self.turns = []
        return super().embed(*given)

    def key(self, norm, linear):
        shape = tuple(linear.shape) if isinstance(linear, torch.Tensor) else tuple(linear.weight.shape)
        self.turns.append(shape)
        return shape, self.turns.count(shape)


class OncePerClass(Base):
    """All engines share what the first one has made, found by its place in the model."""

    shared = {}  # noqa: RUF012

    def key(self, norm, linear):
        for n, layer in enumerate(self.model.layers):
            for name in ("attn_c_attn", "attn_c_proj", "mlp_c_fc", "mlp_c_proj"):
                if getattr(layer, name) is linear:
                    return n, name, len(linear.bias)
        return tuple(linear.shape) if isinstance(linear, torch.Tensor) else linear

    def weights(self, norm, linear):
        key = self.key(norm, linear)
        if key not in self.shared:
            self.shared[key] = self.fold(norm, linear)
        return self.shared[key]


class FoldsInPlace(Base):
    """The model's own weights are changed."""

    def fold(self, norm, linear):
        folded = super().fold(norm, linear)
        if norm is not None and not isinstance(linear, torch.Tensor):
            linear.weight.copy_(folded[0].T)
        return folded


class IntoItsInput(Base):
    """The sum goes where the product's input was."""

    def linear_add(self, h, linear, x):
        made = super().linear_add(h, linear, x)
        h[:, : made.shape[1]].copy_(made)
        return made


class OneBuffer(Base):
    """What is returned lies where the result before it of the same size was."""

    def room(self, x, width):
        self.rooms = getattr(self, "rooms", {})
        if (len(x), width) not in self.rooms:
            self.rooms[len(x), width] = super().room(x, width)
        return self.rooms[len(x), width]


class OneStream(Base):
    """There is one residual stream for each size of a batch."""

    def embed(self, token_ids, positions, wte, wpe):
        x = super().embed(token_ids, positions, wte, wpe)
        self.streams = getattr(self, "streams", {})
        self.streams[len(x)] = x
        return len(x)

    def run(self, x, weights, eps=None, gelu=False, old=None):
        if old is None:
            return super().run(self.streams[x], weights, eps, gelu)
        self.streams[old] = super().run(x, weights, old=self.streams[old])
        return old


class AddsTwice(Base):
    def linear_add(self, h, linear, x):
        return super().linear_add(h, linear, super().linear_add(h, linear, x))


class NothingAdded(Base):
    def linear_add(self, h, linear, x):
        return self.run(h, self.weights(None, linear))


class PositionOfTheFirst(Base):
    def embed(self, token_ids, positions, wte, wpe):
        x = wte.new_empty(len(token_ids), wte.shape[1])
        embedded[(len(x),)](token_ids, positions, wte, wpe, x, x.shape[1], 128, 0)
        return x


class ReadsOnTheHost(Base):
    """The rows of the embedding are found by Python."""

    def embed(self, token_ids, positions, wte, wpe):
        return torch.stack([wte[t] + wpe[p] for t, p in zip(token_ids.tolist(), positions.tolist(), strict=True)])


class KeepsAll(Base):
    def room(self, x, width):
        self.all = [*getattr(self, "all", []), super().room(x, width)]
        return self.all[-1]


class AddsTooLittle(Base):
    """The last number of each row of `h` goes into no product."""

    def linear_add(self, h, linear, x):
        return super().linear_add(F.pad(h[:, :-1], (0, 1)), linear, x)


class LeavesHoles(Base):
    """The last number of each row of the sum is never written."""

    def linear_add(self, h, linear, x):
        total = torch.empty_like(x)
        total[:, :-1] = super().linear_add(h, linear, x)[:, :-1]
        return total


WRONG = (
    NoBias,
    NoMean,
    NoEps,
    Unbiased,
    MeanOfSquares,
    PaddingHasADistance,
    ExactGelu,
    QuickGelu,
    PastTheRow,
    WholeBlocks,
    NoRowMask,
    HalfPrecision,
    OneRowOfTiles,
    LastTileLeftOut,
    NeverSetBack,
    NoShift,
    SumsOfThePlainWeights,
    SquareAsItIs,
    GeluEverywhere,
    ByShape,
    ByTurns,
    OncePerClass,
    FoldsInPlace,
    IntoItsInput,
    OneBuffer,
    OneStream,
    AddsTooLittle,
    LeavesHoles,
    AddsTwice,
    NothingAdded,
    PositionOfTheFirst,
    ReadsOnTheHost,
    KeepsAll,
)


# -- right, and without the idea, or with half of it ------------------------------------------------------------------


class Library:
    """No kernel of one's own."""

    def __init__(self, model, config):
        pass

    def embed(self, token_ids, positions, wte, wpe):
        return F.embedding(token_ids, wte) + F.embedding(positions, wpe)

    def norm_linear(self, x, norm, linear):
        return linear(norm(x))

    def norm_linear_gelu(self, x, norm, linear):
        return F.gelu(linear(norm(x)), approximate="tanh")

    def linear_add(self, h, linear, x):
        return torch.addmm(x + linear.bias, h, linear.weight)

    def logits(self, x, norm, wte):
        return norm(x) @ wte.T


class EmbeddingOfTheLibrary(Base):
    def embed(self, token_ids, positions, wte, wpe):
        return F.embedding(token_ids, wte) + F.embedding(positions, wpe)


class GeluByItself(Base):
    def norm_linear_gelu(self, x, norm, linear):
        return F.gelu(self.norm_linear(x, norm, linear), approximate="tanh")


class FoldsInEachStep(Base):
    def weights(self, norm, linear):
        return self.fold(norm, linear)


class FoldsForEachSize(Base):
    """Each size of a batch has weights of its own."""

    def embed(self, token_ids, *given):
        self.rows = len(token_ids)
        return super().embed(token_ids, *given)

    def key(self, norm, linear):
        return norm, linear, self.rows


class ZerosFirst(Base):
    def room(self, x, width):
        return x.new_zeros(len(x), width)


class ReadsTwice(Base):
    fault = "reads twice"


class ARowEach(Base):
    """A program for each row: the weights of the logits are read for each of them."""

    def logits(self, x, norm, wte):
        normed, out = norm(x), x.new_empty(len(x), len(wte))
        width = x.shape[1]
        one_row[len(x), -(-len(wte) // 64)](normed, wte, out, len(wte), width, 64, 1 << (width - 1).bit_length())
        return out


WITHOUT_THE_IDEA = {
    Library: "no Triton kernel is launched in a step of 5 sessions as in the step before",
    EmbeddingOfTheLibrary: "3 of them are made in a call of `embed`",
    GeluByItself: "2 of them are made in a call of `norm_linear_gelu`",
    FoldsInEachStep: "of them are made in a call of `norm_linear",
    FoldsForEachSize: "operations and launches in a step of 4 sessions after steps of other sizes",
    ZerosFirst: "2 of them are made in a call of",
    ReadsTwice: "a launch reads a weight 2 times in a step of 5 sessions as in the step before",
    ARowEach: "a launch reads a weight 5 times",
}
