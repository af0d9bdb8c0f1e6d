"""The work of an engine process without an engine, which starts at once: token 7 every 10 ms, and none is the last."""

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
