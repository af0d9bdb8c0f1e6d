"""One server for all tests that leave it as it was: a Llama with a chat template."""

import json
import shutil

import pytest

from rosecourse.models.load import SHIPPED
from tests.support.servers import engine_of, real_engine, served

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """tiny-llama, with a chat template in tokenizer_config.json."""
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(SHIPPED["tiny-llama"], folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def engine(folder):
    """The same engine as the server's, in this process."""
    return engine_of(folder)


@pytest.fixture(scope="session")
def server(folder):
    with served(real_engine(folder), stall_seconds=2) as one:
        yield one
