"""The text front end as a program, which Python's libraries are compared with."""

import pytest
from text_oracle import Oracle


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        yield oracle
