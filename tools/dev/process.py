"""Runs one command with a limit of time."""

import os
import signal
import subprocess
import sys

# What a command has to clean up after it was interrupted.
GRACE_S = 30
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def end(process):
    """Interrupts the command, and kills what is left of its process group after GRACE_S."""
    for number, patience in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            pass


def start(command, **arguments):
    """Starts the command in a process group of its own. An interrupt that comes meanwhile ends it, and is raised then: as an
    exception inside of Popen it would lose the process."""
    came = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in INTERRUPTS}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **arguments)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in came:
        end(process)
        signal.raise_signal(number)
    return process


def interrupt_on_sigterm():
    """SIGTERM ends this process as an interrupt does, with its commands: they have process groups of their own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run(command, limit_s, *, env=None, cwd=None):
    """Runs the command in a process group of its own, and returns its exit status: None if it ran past the limit.

    env: variables beside those of this process. An interrupt of this process ends the command too.
    """
    process = start(command, env={**os.environ, **(env or {})}, cwd=cwd)
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return None
    except KeyboardInterrupt:
        end(process)
        raise


class Background:
    """A command that runs beside others; `finish` waits for it."""

    def __init__(self, command, limit_s, log, pass_fds=()):
        self.limit_s = limit_s
        self.log = log
        with open(log, "wb") as file:
            self.process = start(command, stdout=file, stderr=file, pass_fds=pass_fds)

    def finish(self):
        """Its exit status; None if it ran past the limit."""
        try:
            return self.process.wait(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            end(self.process)
            return None

    def cancel(self):
        if self.process.poll() is None:
            end(self.process)


class BusyCores:
    """Keeps cores busy at the priority of everything else, while it is entered."""

    # Ends when its parent does, however that ends.
    LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"

    def __init__(self, num_cores):
        self.num_cores = num_cores

    def __enter__(self):
        self.loops = [subprocess.Popen([sys.executable, "-c", self.LOOP], stdin=subprocess.DEVNULL)
                      for _ in range(self.num_cores)]

    def __exit__(self, *_):
        for loop in self.loops:
            loop.kill()
            loop.wait()
