#!/usr/bin/env python3
"""Prints the crates of text/crate/Cargo.lock, with their licences, as the table of THIRD_PARTY.md.

    third_party/list_crates.py            prints the table
    third_party/list_crates.py --write    writes it between the two marks of THIRD_PARTY.md

Needs cargo, which downloads crates that are only for other systems to read their licences.
"""

import json
import os
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
DOCUMENT = os.path.join(ROOT, "THIRD_PARTY.md")
BEGIN = "<!-- Made by third_party/list_crates.py --write. -->"
END = "<!-- End of what third_party/list_crates.py made. -->"
# What Cargo.toml calls "A/B" or "A / B" is "A OR B".
SPELLINGS = {"MIT/Apache-2.0": "MIT OR Apache-2.0", "Apache-2.0/MIT": "Apache-2.0 OR MIT",
             "Apache-2.0 / MIT": "Apache-2.0 OR MIT"}


def table():
    metadata = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path",
         os.path.join(ROOT, "text/crate/Cargo.toml")], capture_output=True, check=True, text=True).stdout
    crates = [crate for crate in json.loads(metadata)["packages"] if crate["source"] is not None]
    unknown = [crate["name"] for crate in crates if not crate["license"]]
    if unknown:
        raise SystemExit(f"no licence in the metadata of: {', '.join(unknown)}")
    rows = sorted((crate["name"], crate["version"], SPELLINGS.get(crate["license"], crate["license"])) for crate in crates)
    return "\n".join(["| crate | version | licence |", "|---|---|---|"] + [f"| {' | '.join(row)} |" for row in rows])


def main():
    if sys.argv[1:] != ["--write"]:
        print(table())
        return
    with open(DOCUMENT, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN, 1)
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
