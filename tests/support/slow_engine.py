"""The work of an engine process without an engine, which starts at once: token 7 every 10 ms, and none is the last."""

import os
import time

from rosecourse.serving.messages import Ready, Step, Submit


def count_slowly(pipe):
    pipe.send(Ready("slow", None, 10**6, 1))
    numbers = set()
    try:
        while True:
            while pipe.poll(0):
                command = pipe.recv()
                (numbers.add if isinstance(command, Submit) else numbers.discard)(command.number)
            pipe.send(Step([(number, 7, None) for number in numbers], [], len(numbers)))
            time.sleep(0.01)
    except (EOFError, BrokenPipeError):
        pass


def refuse_to_start(pipe):
    pipe.send("no such model")


def die_at_once(pipe):
    pass


def count_to_the_end(pipe):
    """Each request gets as many tokens as it asks for. The process's id is the number of its blocks."""
    pipe.send(Ready("slow", None, 10**6, os.getpid()))
    left = {}
    try:
        while True:
            while pipe.poll(0 if left else None):
                command = pipe.recv()
                left.pop(command.number, None)
                if isinstance(command, Submit):
                    left[command.number] = command.params.max_new_tokens
            left = {number: count - 1 for number, count in left.items() if count}
            pipe.send(Step([(n, 7, None if count else "length") for n, count in left.items()], [], len(left)))
            time.sleep(0.005)
    except (EOFError, BrokenPipeError):
        pass
