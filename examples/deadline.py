"""Streams with a deadline: a request that is late is cancelled, and keeps what it has written so far.

    python examples/deadline.py

The engine decodes two requests at a time, so that others wait for a place. What a cancelled request held, its place in
the batch and its blocks of the cache, is the next one's at once.
"""

import asyncio

import rosecourse as rc

PROMPTS = ("My dear sister,", "She opened the letter and", "It is a truth", "The carriage was")
PARAMS = rc.SamplingParams(max_new_tokens=120, stop_on_eos=False)
SECONDS = 0.4  # for each request, the time that it waits for a place included


async def ask(manager: rc.SchedulerManager, prompt: str, seconds: float) -> tuple[str, bool]:
    """The text that came in time, and whether it is all that was asked for."""
    stream = manager.submit_async(prompt, PARAMS)
    text = ""
    try:
        async with asyncio.timeout(seconds):
            async for token in stream:
                text += token.text
    except TimeoutError:
        stream.cancel()
        return text, False
    return text, True


async def ask_all(manager: rc.SchedulerManager, seconds: float) -> list[tuple[str, bool]]:
    """All prompts at the same time."""
    return await asyncio.gather(*(ask(manager, prompt, seconds) for prompt in PROMPTS))


def main() -> None:
    engine = rc.InferenceEngine(rc.load_model(), rc.EngineConfig(max_batch_size=2))
    with rc.SchedulerManager(rc.OnlineScheduler(engine)) as manager:
        answers = asyncio.run(ask_all(manager, SECONDS))
    for prompt, (text, whole) in zip(PROMPTS, answers, strict=True):
        print(f"[{'whole' if whole else 'late'}] {prompt}{text}\n")


if __name__ == "__main__":
    main()
