"""The lock of a case's answers, which oracle.py also takes: processes that ask for the same case write them in turn."""

import contextlib
import fcntl


@contextlib.contextmanager
def locked(name, folder):
    """`folder`: the case's, beside which the lock lies."""
    with open(folder.with_name(f"{name}.lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
