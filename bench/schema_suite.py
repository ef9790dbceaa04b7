"""Runs the JSON-Schema-Test-Suite (json-schema-org, folder tests) through Berth's grammars, for structure_bench.py. The
data are fetched by whoever runs it.

Each instance of a valid one must be accepted token by token, and each invalid one refused. A schema that no value fits
has no grammar, so its refusal is right where all of its instances are invalid.
"""

import collections
import json
import os
import pathlib
import tempfile

from berth_server import BIN
from maskbench import check, run_files

DRAFTS = {"draft2020-12": "https://json-schema.org/draft/2020-12/schema",
          "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
          "draft7": "http://json-schema.org/draft-07/schema#",
          "draft4": "http://json-schema.org/draft-04/schema#"}
COLUMNS = ["schemas", "refused", "instances", "right", "valid refused", "invalid accepted"]
NOTHING = "no value fits the schema"


def groups_of(folder, draft):
    """(Table, keyword, group) of each schema. Formats are a table of their own."""
    for table, part in (("", ""), (" formats", "optional/format")):
        for path in sorted((pathlib.Path(folder) / draft / part).glob("*.json")):
            for group in json.loads(path.read_text(encoding="utf-8")):
                if isinstance(group["schema"], dict):
                    group["schema"].setdefault("$schema", DRAFTS[draft])
                yield table, path.stem, group


def count(row, group, line, problems):
    tests = group["tests"]
    wrong = line.get("wrong", [])
    if "refused" in line:
        nothing_fits = NOTHING in line["refused"] and not any(test["valid"] for test in tests)
        row["refused"] += not nothing_fits
        row["right"] += len(tests) if nothing_fits else 0
        row["instances"] += len(tests) if nothing_fits else 0
    else:
        row["instances"] += len(tests)
        row["right"] += len(tests) - len(wrong)
    row["schemas"] += 1
    row["valid refused"] += sum(each["valid"] for each in wrong)
    row["invalid accepted"] += sum(not each["valid"] for each in wrong)
    problems += [{"schema": group["schema"], **each} for each in wrong]


def write_table(title, rows):
    print(f"\n| {title} | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    total = sum(rows.values(), collections.Counter())
    for name, row in [*sorted(rows.items()), ("all", total)]:
        print(f"| {name} | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    return total


def measure(folder, tokenizer, details, processes):
    """Prints a table for each draft, and one of its formats. Returns how many invalid instances were accepted,
    and how many instances were right. Ends the bench if Berth crashed."""
    if not (pathlib.Path(folder) / "draft7").is_dir():
        raise SystemExit(f"--test-suite={folder}: no draft7 is there; it is the folder tests of the suite")
    program = [os.path.join(BIN, "bench/maskbench"), "--any_order", f"--tokenizer={tokenizer}"]
    accepted, right, problems, printed = 0, 0, [], []
    for draft in DRAFTS:
        groups = list(groups_of(folder, draft))
        with tempfile.TemporaryDirectory() as out:
            files = [pathlib.Path(out) / f"{i}.json" for i in range(len(groups))]
            for file, (_, _, group) in zip(files, groups):
                file.write_text(json.dumps({"schema": group["schema"], "tests": group["tests"]}), encoding="utf-8")
            lines = run_files(files, program, processes)
        tables = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
        for (table, keyword, group), line in zip(groups, lines):
            count(tables[table][keyword], group, line, problems)
            if "refused" in line:
                problems.append({"schema": group["schema"], "refused": line["refused"]})
        totals = [write_table(draft + table, rows) for table, rows in tables.items()]
        accepted += sum(total["invalid accepted"] for total in totals)
        right += sum(total["right"] for total in totals)
        printed += lines
    if details:
        with open(details, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(problem) + "\n" for problem in problems)
    check("Berth", printed)
    return accepted, right
