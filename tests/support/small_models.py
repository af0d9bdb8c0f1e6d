"""Models of the engine with the weights of models that `transformers` holds in memory."""

import torch

from rosecourse.models.gpt2 import GPT2, GPT2Shape


def from_transformers(hf, tokenizer, name="gpt2", dtype=torch.float32, device="cpu"):
    """The engine's form of a `transformers` GPT-2."""
    config = hf.config
    shape = GPT2Shape(config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head)
    state = {weight.removeprefix("transformer."): value for weight, value in hf.state_dict().items()}
    model = GPT2(shape, {w: state[w].to(device, dtype) for w in shape.parameters()}, tokenizer, name)
    model.eos_token_id = hf.generation_config.eos_token_id
    return model
