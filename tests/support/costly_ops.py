"""Right operations without the idea of lesson 069, or only with half of it."""

import torch
import torch.nn.functional as F

from tests.support.ops_parts import Base, Residual


class AsBefore(Base):
    """Added at once, normalised by itself."""

    def added(self, x, delta):
        return Residual(super().added(x, delta).x + delta, None)

    def embed(self, token_ids, positions, wte, wpe):
        return Residual(F.embedding(token_ids, wte) + F.embedding(positions, wpe), None)


class EmbedsAtOnce(Base):
    def embed(self, token_ids, positions, wte, wpe):
        return Residual(F.embedding(token_ids, wte) + F.embedding(positions, wpe), None)


class LastSumByItself(Base):
    def logits(self, x, norm, wte):
        return super().logits(Residual(x.x + x.delta, None) if x.delta is not None else x, norm, wte)


class AddsZeros(Base):
    """A norm is always taken by `add_norm`."""

    def linear_add(self, h, linear, x):
        zeros = torch.zeros_like(x.x)
        return Residual(x.x, self.product(h, linear) + (zeros if x.delta is None else x.delta))


class ForgetsTheSum(Base):
    """A stream is never changed, so that the sum is made once more by whoever adds to it."""

    def norm(self, x, norm):
        if x.delta is None:
            return norm(x.x)
        return self.add_norm(x.x, x.delta, norm.weight, norm.bias, norm.eps)[1]


class CopiesAProduct(Base):
    def product(self, h, linear):
        return linear(h).clone()


class NotPadded(Base):
    def pad(self, wte):
        return wte


class PadsToSixtyFour(Base):
    def pad(self, wte):
        self.padded = self.padded or F.pad(wte, (0, 0, 0, -len(wte) % 64))
        return self.padded

    def __init__(self, model, config):
        super().__init__(model, config)
        self.first = model.wte

    def logits(self, x, norm, wte):
        if wte is not self.first:
            return self.norm(x, norm) @ wte.T
        return self.cut(self.norm(x, norm) @ self.padded_first().T, wte)

    def padded_first(self):
        if self.padded is None:
            self.padded = F.pad(self.first, (0, 0, 0, -len(self.first) % 64))
        return self.padded


class PadsInEachStep(Base):
    def pad(self, wte):
        return F.pad(wte, (0, 0, 0, -len(wte) % 256))


class ACopyForEachSize(Base):
    """Each size of a batch has a padded copy of its own."""

    def logits(self, x, norm, wte):
        self.copies = getattr(self, "copies", {})
        normed = self.norm(x, norm)
        if (wte, len(normed)) not in self.copies:
            self.copies[wte, len(normed)] = F.pad(wte, (0, 0, 0, -len(wte) % 256))
        return self.cut(normed @ self.copies[wte, len(normed)].T, wte)


class LogitsOfTheirOwn(Base):
    """The logits are copied out of the padded product."""

    def cut(self, logits, wte):
        return logits[:, : len(wte)].contiguous()


WITHOUT_THE_IDEA = {
    AsBefore: "still 23 operations that move data in a step of 5 sessions after steps with the same sessions",
    EmbedsAtOnce: "3 of them are made in a call of `embed`",
    LastSumByItself: "3 of them are made in a call of `logits`",
    AddsZeros: "of them are made in a call of `linear_add`",
    ForgetsTheSum: "2 of them are made in a call of `linear_add`",
    CopiesAProduct: "2 of them are made in a call of `linear_add`",
    NotPadded: "the product that makes the logits has 97 columns in a step of 5 sessions after steps with",
    PadsToSixtyFour: "the product that makes the logits has 128 columns",
    PadsInEachStep: "3 of them are made in a call of `logits`",
    ACopyForEachSize: "copies of the embedding in a step of 4 sessions after steps of other sizes",
    LogitsOfTheirOwn: "3 of them are made in a call of `logits`",
}
