"""The two Pythons of these tests: the one that runs them, with the oldest versions that the client supports
(tools/parity/requirements.txt), and one with the newest (requirements.txt), which ./dev installs."""

import os

from berth_server import ROOT

FOLDER = os.environ.get("BERTH_CLIENTS_VENV",
                        os.path.join(os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth")), "clients-venv"))
CLIENTS_PYTHON = os.path.join(FOLDER, "bin/python")
WHEELS = os.path.join(FOLDER, "wheels")  # of grpcio and protobuf, for an installation without a network


def environment(**variables):
    """The environment of a program that uses the client of the tree. It must not look for anything outside this
    machine."""
    return {**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients/python/src"), "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1", "PIP_NO_INDEX": "1", **variables}
