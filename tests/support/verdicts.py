"""What a verdict of the lab is to say of a wrong part, and of a right one that misses the idea."""


def assert_refused(verdict, cause, says):
    assert verdict.cause is cause, verdict
    assert says in str(verdict), verdict


def assert_right_but_costly(verdict, says):
    assert verdict.correct, verdict
    assert not verdict.passed
    assert says in str(verdict), verdict
