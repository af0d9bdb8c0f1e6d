"""Operations whose products, padding or memory are wrong, each with its cause and a piece of what is said."""

import torch
import torch.nn.functional as F

from tests.support.ops_parts import Base, Residual


class NoBias(Base):
    def product(self, h, linear):
        return h @ linear.weight


class NoBiasWhereItWaits(Base):
    def linear_add(self, h, linear, x):
        return self.added(x, h @ linear.weight)


class TransposedIfSquare(Base):
    """F.linear wants [out, in]; where the sizes tell, the weight is turned."""

    def product(self, h, linear):
        fits = linear.weight.shape[0] == linear.weight.shape[1]
        return F.linear(h, linear.weight if fits else linear.weight.T, linear.bias)


class SumsWithTheFirst(Base):
    """As a kernel reads that takes its sizes from the weight: on in memory, whatever the rows' length."""

    def linear_add(self, h, linear, x):
        self.first = getattr(self, "first", None) or linear
        inputs = len(self.first.weight)
        rows = h.flatten()[: len(h) * inputs].view(len(h), inputs)
        return self.added(x, rows @ self.first.weight + linear.bias)


class ExactGelu(Base):
    def gelu(self, h):
        return F.gelu(h)


class TheLibrarysEpilogue(Base):
    """It is GELU with tanh on a GPU, and another one on a CPU."""

    def norm_linear_gelu(self, x, norm, linear):
        return torch._addmm_activation(linear.bias, self.norm(x, norm), linear.weight, use_gelu=True)


class NoGelu(Base):
    def gelu(self, h):
        return h


class GeluEverywhere(Base):
    def norm_linear(self, x, norm, linear):
        return self.norm_linear_gelu(x, norm, linear)


class QuickGelu(Base):
    def gelu(self, h):
        return h * torch.sigmoid(1.702 * h)


class NotCut(Base):
    def cut(self, logits, wte):
        return logits


class CutInFront(Base):
    def cut(self, logits, wte):
        return logits[:, -len(wte) :]


class PaddedInFront(Base):
    def pad(self, wte):
        return F.pad(wte, (0, 0, -len(wte) % 256, 0))


class PadsTheFirstModel(Base):
    """Whatever embedding comes later is taken for the first."""

    def pad(self, wte):
        if self.padded is None:
            self.padded = F.pad(wte, (0, 0, 0, -len(wte) % 256))
        return self.padded


class PadsOnceForAll(Base):
    """The copy is the class's: all engines share it."""

    copy = None

    def pad(self, wte):
        if PadsOnceForAll.copy is None:
            PadsOnceForAll.copy = F.pad(wte, (0, 0, 0, -len(wte) % 256))
        return PadsOnceForAll.copy


class PadsBySize(Base):
    """The copy is found by the size of the embedding."""

    def pad(self, wte):
        self.padded = self.padded or {}
        if wte.shape not in self.padded:
            self.padded[wte.shape] = F.pad(wte, (0, 0, 0, -len(wte) % 256))
        return self.padded[wte.shape]


class GrowsTheEmbedding(Base):
    """No copy: the embedding itself gets more rows."""

    def pad(self, wte):
        words = getattr(self, "words", len(wte))
        self.words = words
        wte.data = F.pad(wte[:words], (0, 0, 0, -words % 256))
        return wte

    def cut(self, logits, wte):
        return logits[:, : self.words]


class ReplacesTheEmbedding(Base):
    """The model gets the padded one in the place of its own."""

    def pad(self, wte):
        padded = super().pad(wte)
        self.model.wte = padded
        return padded


class FoldsTheNormIn(Base):
    """The weight of a norm is multiplied into the product behind it, once, and left out from then on."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.folded = set()

    def norm_linear(self, x, norm, linear):
        if linear not in self.folded:
            self.folded.add(linear)
            linear.bias.add_(norm.bias @ linear.weight)
            linear.weight.mul_(norm.weight[:, None])
        plain = type(norm)(torch.ones_like(norm.weight), torch.zeros_like(norm.bias), norm.eps)
        return linear(self.norm(x, plain))


class GeluInPlace(Base):
    """The product goes where its input was."""

    def linear_add(self, h, linear, x):
        delta = linear(h)
        h[:, : delta.shape[1]].copy_(delta)
        return self.added(x, h[:, : delta.shape[1]].contiguous())


class AddsToThePositions(Base):
    """The next positions are made at once."""

    def embed(self, token_ids, positions, wte, wpe):
        stream = super().embed(token_ids, positions, wte, wpe)
        positions.add_(1)
        return stream


class OneBuffer(Base):
    """All products of a width are written to the same place."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.buffers = {}

    def product(self, h, linear):
        at = len(h), len(linear.bias)
        self.buffers.setdefault(at, h.new_empty(at))
        return torch.addmm(linear.bias, h, linear.weight, out=self.buffers[at])


class OneBufferOfLogits(Base):
    def logits(self, x, norm, wte):
        made = super().logits(x, norm, wte)
        self.kept = getattr(self, "kept", None)
        if self.kept is None or self.kept.shape != made.shape:
            self.kept = torch.empty_like(made, memory_format=torch.contiguous_format)
        return self.kept.copy_(made)


class ReadsAPosition(Base):
    """The host looks whether a session is new."""

    def embed(self, token_ids, positions, wte, wpe):
        if positions.min().item() < 0:
            raise ValueError("a position below 0")
        return super().embed(token_ids, positions, wte, wpe)


class LooksForZeros(Base):
    """Rows of padding are left out of the embedding, as many as there are."""

    def embed(self, token_ids, positions, wte, wpe):
        stream = super().embed(token_ids, positions, wte, wpe)
        return stream if positions.any() else Residual(stream.x, stream.delta)


class InSinglePrecision(Base):
    def logits(self, x, norm, wte):
        return super().logits(x, norm, wte).float()


class Columns(Base):
    """The padded product the other way round: a number lies behind that of the next session."""

    def logits(self, x, norm, wte):
        return (self.pad(wte) @ self.norm(x, norm).T).T[:, : len(wte)]


class NoRowForOne(Base):
    def norm_linear(self, x, norm, linear):
        return super().norm_linear(x, norm, linear).squeeze(0)


class ReturnsNothing(Base):
    def linear_add(self, h, linear, x):
        x.x, x.delta = x.x if x.delta is None else x.x + x.delta, linear(h)


class NoLogits:
    def __init__(self, model, config):
        pass

    embed, norm_linear, norm_linear_gelu, linear_add = (
        Base.embed,
        Base.norm_linear,
        Base.norm_linear_gelu,
        Base.linear_add,
    )


class Raises(Base):
    def added(self, x, delta):
        return Residual(x.x + x.delta, delta)


class WeightsOfTheFirst(Base):
    """The products of all layers are those of the first one that has these sizes."""

    def product(self, h, linear):
        self.first = getattr(self, "first", {})
        return self.first.setdefault(linear.weight.shape, linear)(h)


WRONG_PRODUCTS = (
    NoBias,
    NoBiasWhereItWaits,
    TransposedIfSquare,
    WeightsOfTheFirst,
    SumsWithTheFirst,
    ExactGelu,
    TheLibrarysEpilogue,
    NoGelu,
    GeluEverywhere,
    QuickGelu,
    NotCut,
    CutInFront,
    PaddedInFront,
    PadsTheFirstModel,
    PadsOnceForAll,
    PadsBySize,
    GrowsTheEmbedding,
    ReplacesTheEmbedding,
    FoldsTheNormIn,
    GeluInPlace,
    AddsToThePositions,
    OneBuffer,
    OneBufferOfLogits,
    ReadsAPosition,
    LooksForZeros,
    InSinglePrecision,
    Columns,
    NoRowForOne,
    ReturnsNothing,
    NoLogits,
    Raises,
)
