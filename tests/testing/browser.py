"""Opens pages in headless Chromium (Debian's package chromium), and tells what their scripts did wrong."""

import os
import re
import subprocess
import tempfile

PROGRAM = "chromium"
# A screenshot shows a page of this width and height, smaller.
SIZE, SCALE = "1080,1980", 0.75


def run(url, *flags):
    """The standard output, and the messages that the page's scripts wrote to the console: errors that it does not catch."""
    with tempfile.TemporaryDirectory(prefix="berth-browser-") as profile:
        command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}",
                   "--enable-logging=stderr", f"--window-size={SIZE}", *flags, url]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300,
                                env={**os.environ, "LD_LIBRARY_PATH": ""})
    assert result.returncode == 0, result.stderr
    return result.stdout, re.findall(r"CONSOLE[:(]\d+\)?\] (.*)", result.stderr)


def open_page(path):
    """The page's document as its scripts left it, and the console's messages."""
    return run(f"file://{path}", "--dump-dom")


def take_screenshot(path, image):
    _, messages = run(f"file://{path}", f"--screenshot={image}", "--hide-scrollbars", f"--force-device-scale-factor={SCALE}")
    assert messages == [], messages
