"""Operations whose residual stream or norm is wrong, each with its cause and a piece of what is said."""

import torch
import torch.nn.functional as F

from tests.support.ops_parts import Base, Residual


class DropsWhatIsAdded(Base):
    def added(self, x, delta):
        return x


class AddsTwice(Base):
    """What has waited goes on waiting."""

    def norm(self, x, norm):
        x.x, normed = self.add_norm(x.x, self.delta_of(x), norm.weight, norm.bias, norm.eps)
        return normed

    def delta_of(self, x):
        return torch.zeros_like(x.x) if x.delta is None else x.delta


class NormWithoutTheSum(Base):
    """The sum goes on, and its norm is that of what was there before."""

    def norm(self, x, norm):
        before = norm(x.x)
        super().norm(x, norm)
        return before


class OnlyOneWaits(Base):
    """What waits already is lost where something is added to it."""

    def added(self, x, delta):
        return Residual(x.x, delta)


class LastNormWithoutTheLast(Base):
    def logits(self, x, norm, wte):
        return self.cut(norm(x.x) @ self.pad(wte).T, wte)


class NoPositions(Base):
    def embed(self, token_ids, positions, wte, wpe):
        return Residual(F.embedding(token_ids, wte), None)


class PositionsOfTheFirst(Base):
    """The positions of a batch are those of its first row."""

    def embed(self, token_ids, positions, wte, wpe):
        return super().embed(token_ids, positions[:1].expand_as(positions), wte, wpe)


class RemembersPositions(Base):
    """By the size of a batch."""

    def embed(self, token_ids, positions, wte, wpe):
        self.rows = getattr(self, "rows", {})
        if len(positions) not in self.rows:
            self.rows[len(positions)] = F.embedding(positions, wpe)
        return Residual(F.embedding(token_ids, wte), self.rows[len(positions)])


class NormsTheDelta(Base):
    def norm(self, x, norm):
        delta = x.delta
        normed = super().norm(x, norm)
        return normed if delta is None else norm(delta)


class NormGoesOn(Base):
    """Sum and norm are mixed up, as far as the stream goes."""

    def norm(self, x, norm):
        if x.delta is None:
            return norm(x.x)
        _, x.x = self.add_norm(x.x, x.delta, norm.weight, norm.bias, norm.eps)
        x.delta = None
        return x.x


class SumIntoTheProduct(Base):
    """Sum and norm are mixed up, as far as the product goes."""

    def norm(self, x, norm):
        super().norm(x, norm)
        return x.x


class TheFirstNorm(Base):
    """The weights of a norm are read once."""

    def norm(self, x, norm):
        self.first = getattr(self, "first", norm)
        return super().norm(x, self.first)


class AlwaysTheUsualEps(Base):
    def norm(self, x, norm):
        return super().norm(x, type(norm)(norm.weight, norm.bias, 1e-5))


class NoWeight(Base):
    def norm(self, x, norm):
        return super().norm(x, type(norm)(torch.ones_like(norm.weight), norm.bias, norm.eps))


class NoMean(Base):
    def norm(self, x, norm):
        super().norm(x, norm)
        return x.x * (x.x.square().mean(1, keepdim=True) + norm.eps).rsqrt() * norm.weight + norm.bias


class Unbiased(Base):
    def norm(self, x, norm):
        super().norm(x, norm)
        mean, var = x.x.mean(1, keepdim=True), x.x.var(1, keepdim=True)
        return (x.x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


class OfLanes(Base):
    """As a kernel may normalise that has a power of two of lanes for a row."""

    def norm(self, x, norm):
        super().norm(x, norm)
        mean, variance = self.of(x.x, 1 << (x.x.shape[1] - 1).bit_length())
        return (x.x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


class LanesHaveADistance(OfLanes):
    def of(self, x, lanes):
        mean = x.mean(1, keepdim=True)
        return mean, F.pad(x, (0, lanes - x.shape[1])).sub(mean).square().sum(1, keepdim=True) / x.shape[1]


class VarianceByLanes(OfLanes):
    def of(self, x, lanes):
        mean = x.mean(1, keepdim=True)
        return mean, (x - mean).square().sum(1, keepdim=True) / lanes


class MeanByLanes(OfLanes):
    def of(self, x, lanes):
        mean = x.sum(1, keepdim=True) / lanes
        return mean, (x - mean).square().mean(1, keepdim=True)


class BothByLanes(OfLanes):
    def of(self, x, lanes):
        mean = x.sum(1, keepdim=True) / lanes
        return mean, (x - mean).square().sum(1, keepdim=True) / lanes


class EpsBehindTheRoot(Base):
    def norm(self, x, norm):
        super().norm(x, norm)
        mean, deviation = x.x.mean(1, keepdim=True), x.x.std(1, correction=0, keepdim=True)
        return (x.x - mean) / (deviation + norm.eps) * norm.weight + norm.bias


class WaitsInThePart(Base):
    """What waits lies in the part, and not in the stream."""

    def embed(self, token_ids, positions, wte, wpe):
        self.delta = F.embedding(positions, wpe)
        return [F.embedding(token_ids, wte)]

    def added(self, x, delta):
        if self.delta is not None:
            x = [x[0] + self.delta]
        self.delta = delta
        return x

    def norm(self, x, norm):
        if self.delta is None:
            return norm(x[0])
        x[0], normed = self.add_norm(x[0], self.delta, norm.weight, norm.bias, norm.eps)
        self.delta = None
        return normed


class OneStream(Base):
    """The stream is the part's, and the model gets a word for it."""

    def embed(self, token_ids, positions, wte, wpe):
        self.stream = super().embed(token_ids, positions, wte, wpe)
        return "the stream"

    def norm(self, x, norm):
        return super().norm(self.stream, norm)

    def added(self, x, delta):
        self.stream = super().added(self.stream, delta)
        return x


class NormedBySize(Base):
    """Of each norm and batch size it is remembered what came out."""

    def norm(self, x, norm):
        normed = super().norm(x, norm)
        self.seen = getattr(self, "seen", {})
        return self.seen.setdefault((id(norm), len(normed)), normed)


class KeepsAll(Base):
    """For a look at them later."""

    def embed(self, token_ids, positions, wte, wpe):
        stream = super().embed(token_ids, positions, wte, wpe)
        self.streams = [*getattr(self, "streams", ()), stream]
        return stream


class SpreadsABias(Base):
    """The bias of a product waits, instead of the product: the kernel would read rows that are not there."""

    def linear_add(self, h, linear, x):
        total = x.x if x.delta is None else x.x + x.delta
        return Residual(torch.addmm(total, h, linear.weight), linear.bias[None].expand_as(total))


WRONG_SUMS = (
    DropsWhatIsAdded,
    AddsTwice,
    NormWithoutTheSum,
    OnlyOneWaits,
    LastNormWithoutTheLast,
    NoPositions,
    PositionsOfTheFirst,
    RemembersPositions,
    NormsTheDelta,
    NormGoesOn,
    SumIntoTheProduct,
    TheFirstNorm,
    AlwaysTheUsualEps,
    NoWeight,
    NoMean,
    Unbiased,
    LanesHaveADistance,
    VarianceByLanes,
    MeanByLanes,
    BothByLanes,
    EpsBehindTheRoot,
    WaitsInThePart,
    OneStream,
    KeepsAll,
    NormedBySize,
    SpreadsABias,
)
