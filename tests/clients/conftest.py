"""The package under test is that of the tree, unless BERTH_CLIENT is "installed"."""

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../testing"))
sys.path.insert(0, HERE)
if os.environ.get("BERTH_CLIENT") != "installed":
    sys.path.insert(0, os.path.join(HERE, "../../clients/python/src"))


@pytest.fixture
def server():
    from fake_server import FakeServer

    with FakeServer() as server:
        yield server


@pytest.fixture
def client(server):
    from berth_client import Client

    with Client(server.address) as client:
        yield client
