"""Models of the Llama family as `transformers` makes them, for tests."""

import torch

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}


def random_hf(kind, config):
    """A model of a class and a config with random weights, biases and norms, too, which begin as zeros and ones."""
    torch.manual_seed(0)
    hf = kind(config).eval()
    for name, weight in hf.named_parameters():
        if name.endswith("bias") or "norm" in name:
            weight.data.add_(0.3 * torch.randn_like(weight))
    return hf


def greedy(hf, prompt, most):
    """So many token ids after a prompt, to the end."""
    ids = torch.tensor([prompt])
    asked = {"do_sample": False, "max_new_tokens": most, "eos_token_id": None, "pad_token_id": 0}
    return hf.generate(ids, attention_mask=torch.ones_like(ids), **asked)[0, len(prompt) :].tolist()
