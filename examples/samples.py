"""Parallel sampling: several completions of one prompt, whose blocks of the cache they share.

    python examples/samples.py

The prompt is computed once. Each further sample is a fork: it has the same blocks, and gets a copy of the last one when
it writes into it (copy-on-write). `engine.generate(PROMPT, params, n=4)` does all of this in one call.
"""

import rosecourse as rc

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
SAMPLES, TOKENS = 4, 24
CONFIG = rc.EngineConfig(block_size=4, max_batch_size=SAMPLES, prefix_cache=False)


def params_of(number: int) -> rc.SamplingParams:
    """What sample `number` is asked for: its draws depend on its seed."""
    return rc.SamplingParams(max_new_tokens=TOKENS, temperature=0.9, seed=number, stop_on_eos=False)


def sample(engine: rc.InferenceEngine) -> tuple[list[str], int, int]:
    """The samples; the blocks that they hold together at the end; and how many it would be if they shared none."""
    first = engine.new_session(PROMPT, params_of(0))
    logits = engine.prefill([first])
    sessions = [first, *(engine.fork(first, params_of(number)) for number in range(1, SAMPLES))]
    engine.take_tokens(sessions, logits.expand(SAMPLES, -1))  # each draws its first token from the same logits
    while not first.finished:  # all are as long
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    together = len(engine.kv.blocks_in_use)
    alone = sum(len(engine.kv.blocks_of(session.table)) for session in sessions)
    for session in sessions:
        engine.free(session)
    return [engine.detokenize(session.completion_ids) for session in sessions], together, alone


def main() -> None:
    texts, together, alone = sample(rc.InferenceEngine(rc.load_model(), CONFIG))
    print(PROMPT)
    for number, text in enumerate(texts):
        print(f"\n[{number}] ...{text}")
    print(f"\n{together} blocks of the cache in use; without sharing it would be {alone}.")


if __name__ == "__main__":
    main()
