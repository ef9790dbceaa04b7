"""Every flag of the server is in the list of tests/server/config_test.cc, which sets each flag to another value."""

import re

from sources import read

# Flags that the list cannot have, and where their tests are.
ELSEWHERE = {
    "model": "what most tests of config_test.cc set: WithoutFlagsIsTheDefault checks the field",
    "flagfile": "reads other flags: config_test.cc and flag_set_test.cc",
    "list_models": "a listing in place of a server: config_test.cc, ListingModelsNeedsNoModel",
    "list_kernels": "a listing in place of a server: config_test.cc, ListingKernelsNeedsNoModel",
    "version": "prints and exits: config_test.cc, HelpAndVersionAreReturned",
}


def flags_of_server(document):
    """The names in the tables of berth-server. tests/docs/test_generated.py compares the document with the flags."""
    part = document.partition("## berth-server\n")[2]
    return re.findall(r"^\| `--(\w+)", re.split(r"^## ", part, flags=re.M)[0], re.M)


def flags_of_list(source):
    return re.findall(r'^ *"--(\w+)', source.partition("EveryFlag() {\n")[2].partition("\n}\n")[0], re.M)


def test_every_flag_is_in_the_list():
    flags = flags_of_server(read("docs/flags.md"))
    listed = flags_of_list(read("tests/server/config_test.cc"))
    assert len(flags) > 70 and len(set(listed)) == len(listed)
    assert set(listed) <= set(flags)
    left_out = set(flags) - set(listed)
    assert left_out == ELSEWHERE.keys()


def test_flags_are_read():
    document = "## berth-server\n### A\n| `--a=n` | `0` | A |\n| `--b` | | B. See `--c`. |\n## berth-cli\n| `--d` |\n"
    assert flags_of_server(document) == ["a", "b"]
    source = 'int EveryFlag() {\n      "--a=1",\n      "--b",\n}\nint F() {\n      "--c",\n}\n'
    assert flags_of_list(source) == ["a", "b"]
