"""The records that a run of `./dev test` leaves in Berth's cache folder. `./dev test --status` reads that of the whole
run. The others are of steps that need not run again on the same files."""

import datetime
import glob
import json
import os
import subprocess
import tempfile

# Older records are removed.
KEPT = 100


def git(root, *arguments, env=None):
    result = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            timeout=60, env={**os.environ, **(env or {})})
    return result.stdout.strip() if result.returncode == 0 else ""


def commit_of(root):
    """HEAD's commit, and whether the files are HEAD's."""
    return git(root, "rev-parse", "HEAD"), not git(root, "status", "--porcelain")


def files_of(root):
    """The name of git's tree of all files but ignored ones, committed or not: it changes with any of them."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git(root, "read-tree", "HEAD", env=index)
        git(root, "add", "--all", env=index)
        return git(root, "write-tree", env=index)


def step_path(cache, step):
    return os.path.join(cache, "test-records", "steps", step.replace(" ", "-").replace(",", "") + ".json")


def keep_pass(cache, step, files, num_passed):
    """Keeps that the step passed on these files, with the number of its tests."""
    path = step_path(cache, step)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"files": files, "num_passed": num_passed}, file)
    os.rename(path + ".new", path)


def passed_before(cache, step, files):
    """The number of the step's tests, if the last time that it passed was on these files; else None."""
    try:
        with open(step_path(cache, step), encoding="utf-8") as file:
            kept = json.load(file)
    except FileNotFoundError:
        return None
    return kept["num_passed"] if files and kept["files"] == files else None


def write(root, cache, commit, tier, run):
    """`commit`: what commit_of returned before the run. The files must not have changed since to count as clean."""
    head, clean = commit
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = os.path.join(cache, "test-records")
    os.makedirs(folder, exist_ok=True)
    entry = {"commit": head, "clean": clean and commit_of(root) == commit, "tier": tier,
             "date": now.isoformat(timespec="seconds"), "table": run.table, "failures": run.failures,
             "unreached": run.unreached}
    path = os.path.join(folder, now.strftime("%Y%m%dT%H%M%S") + f"-{head[:12]}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(entry, file, indent=1)
    os.rename(path + ".new", path)
    for old in sorted(glob.glob(os.path.join(folder, "*.json")))[:-KEPT]:
        os.remove(old)


def read(cache):
    """All records, the newest first."""
    entries = []
    for path in sorted(glob.glob(os.path.join(cache, "test-records", "*.json")), reverse=True):
        with open(path, encoding="utf-8") as file:
            entries.append(json.load(file))
    return entries


def describe(entry):
    if entry["failures"]:
        return "\n".join([f"red: {len(entry['failures'])} failed", *(f"  {failure}" for failure in entry["failures"])])
    return "green"


def status(root, cache):
    """One line on HEAD, and more if it is red or has no record."""
    head, clean = commit_of(root)
    entries = [entry for entry in read(cache) if entry["clean"]]
    lines = [] if clean else ["files differ from HEAD; what follows is of HEAD"]
    of_head = next((entry for entry in entries if entry["commit"] == head), None)
    if of_head:
        lines.append(f"{head[:9]} ({of_head['tier']} tier, {of_head['date']}): {describe(of_head)}")
        return "\n".join(lines)
    green = [entry["commit"] for entry in entries if not entry["failures"]]
    for commit in green:
        since = git(root, "rev-list", "--count", f"{commit}..HEAD")
        if since and git(root, "merge-base", commit, "HEAD") == commit:
            lines.append(f"{head[:9]} has no record; {since} commits since {commit[:9]}, the last green one")
            return "\n".join(lines)
    lines.append(f"{head[:9]} has no record, and no commit before it a green one")
    return "\n".join(lines)
