"""Operations as learners write them: right ones in other styles."""

import torch
import torch.nn.functional as F

from rosecourse.kernels import add_norm_on


class Pairs:
    """The stream is a list of two; the padded embedding lies transposed, in a dict by the embedding itself."""

    def __init__(self, model, config):
        self.fused, self.heads = add_norm_on(model.device), {}

    def embed(self, token_ids, positions, wte, wpe):
        return [wte[token_ids], wpe[positions]]

    def norm_linear(self, x, norm, linear):
        return torch.addmm(linear.bias, self.settled(x, norm), linear.weight)

    def norm_linear_gelu(self, x, norm, linear):
        return F.gelu(self.norm_linear(x, norm, linear), approximate="tanh")

    def linear_add(self, h, linear, x):
        made = torch.addmm(linear.bias, h, linear.weight)
        return [x[0], made] if len(x) == 1 else [x[0] + x[1], made]

    def logits(self, x, norm, wte):
        if wte not in self.heads:
            head = wte.new_zeros(wte.shape[1], -(-len(wte) // 256) * 256)
            head[:, : len(wte)] = wte.T
            self.heads[wte] = head
        return (self.settled(x, norm) @ self.heads[wte]).narrow(1, 0, len(wte))

    def settled(self, x, norm):
        if len(x) == 1:
            return norm(x[0])
        x[0], normed = self.fused(x[0], x.pop(), norm.weight, norm.bias, norm.eps)
        return normed


class Waits:
    """A stream that knows how to be normalised, and remembers what it came to."""

    class Stream:
        def __init__(self, fused, *parts):
            self.fused, self.parts, self.known = fused, parts, {}

        def by(self, norm):
            if norm not in self.known:
                if len(self.parts) == 1:
                    self.known[norm] = norm(self.parts[0])
                else:
                    total, self.known[norm] = self.fused(*self.parts, norm.weight, norm.bias, norm.eps)
                    self.parts = (total,)
            return self.known[norm]

        def and_then(self, delta):
            if len(self.parts) == 1:
                return type(self)(self.fused, self.parts[0], delta)
            return type(self)(self.fused, self.parts[0], self.parts[1] + delta)

    def __init__(self, model, config):
        self.fused, self.wte = add_norm_on(model.device), None

    def embed(self, token_ids, positions, wte, wpe):
        return self.Stream(self.fused, torch.index_select(wte, 0, token_ids), torch.index_select(wpe, 0, positions))

    def norm_linear(self, x, norm, linear):
        return linear(x.by(norm))

    def norm_linear_gelu(self, x, norm, linear):
        return torch.nn.functional.gelu(linear(x.by(norm)), approximate="tanh")

    def linear_add(self, h, linear, x):
        return x.and_then(linear(h))

    def logits(self, x, norm, wte):
        if self.wte is not wte:
            self.wte = wte
            self.rows = torch.cat([wte, wte[:1].expand(-len(wte) % 256, -1)])  # whatever they say, nobody reads it
        return F.linear(x.by(norm), self.rows)[:, : len(wte)]


class AtTheStart:
    """The model's own embedding is padded when the part is made, and any other one when it comes."""

    def __init__(self, model, config):
        self.fused = add_norm_on(model.device)
        self.pad(model.wte)

    def pad(self, wte):
        rows = (len(wte) + 255) // 256 * 256
        self.wte, self.large = wte, torch.full((rows, wte.shape[1]), 7.0, dtype=wte.dtype, device=wte.device)
        self.large[: len(wte)].copy_(wte)

    def embed(self, token_ids, positions, wte, wpe):
        return {"sum": F.embedding(token_ids, wte), "waits": [F.embedding(positions, wpe)]}

    def norm_linear(self, x, norm, linear):
        return linear(self.norm(x, norm))

    def norm_linear_gelu(self, x, norm, linear):
        return F.gelu(self.norm_linear(x, norm, linear), approximate="tanh")

    def linear_add(self, h, linear, x):
        x["waits"].append(linear(h))
        return x

    def logits(self, x, norm, wte):
        if wte is not self.wte:
            self.pad(wte)
        return torch.mm(self.norm(x, norm), self.large.T)[:, : wte.shape[0]]

    def norm(self, x, norm):
        while len(x["waits"]) > 1:
            x["sum"] = x["sum"] + x["waits"].pop()
        if not x["waits"]:
            return norm(x["sum"])
        x["sum"], normed = self.fused(x["sum"], x["waits"].pop(), norm.weight, norm.bias, norm.eps)
        return normed


RIGHT = (Pairs, Waits, AtTheStart)
