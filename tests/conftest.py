"""Which Python tests run in one process, where `./dev test` runs them in several: those of one file, or of one folder
whose tests share what takes long to make. What takes longest starts first, so that all processes end at about the same
time."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["tests/deploy"]
LONGEST_FIRST = ["tests/deploy", "tests/e2e/test_soak.py", "tests/e2e/test_structure.py"]


def group_of(path):
    return next((folder for folder in FOLDERS if path.startswith(folder + "/")), path)


def pytest_collection_modifyitems(items):
    groups = {item: group_of(str(item.path.relative_to(ROOT))) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: groups[item] not in LONGEST_FIRST)
