#!/usr/bin/env python3
"""Runs Berth's tests: all of the first tier, some of them, or both tiers. tools/dev/tiers.py says what is in which.

  ./dev test                what a change may have broken
  ./dev test --full         that, and everything else: hours
  ./dev test --minutes=60   that, and as much of the rest as this time allows; names what it did not reach
  ./dev test --changed      the tests that depend on files that differ from main, committed or not
  ./dev test TARGET...      Bazel targets (//tests/cache/...) and Python tests (tests/e2e/test_server.py)
  ./dev test --stress ...   any of these, with every core kept busy by other work
  ./dev test --again ...    any of these, with what passed before on the same files
  ./dev test --status       what the newest record says of HEAD

Every step has a limit of time, so what hangs is named. A failure ends neither this program nor the next steps. At the end
come a table and the count of tests that passed and failed. A run of a tier leaves a record (tools/dev/record.py).
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import changed  # noqa: E402
import process  # noqa: E402
import processors  # noqa: E402
import record  # noqa: E402
import results  # noqa: E402
import tiers  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
ORACLE_PYTHON = f"{CACHE}/oracle-venv/bin/python"
GATEWAY_PYTHON = f"{CACHE}/gateway-venv/bin/python"
# A limit of time against hangs: several times what a step takes on a slow machine with nothing built.
INSTALL_MINUTES, BUILD_MINUTES, TEST_MINUTES, FULL_MINUTES = 30, 60, 60, 24 * 60
# One Python test. It ends with the stacks of all threads.
PYTEST_TIMEOUT_S = 900
# Python tests wait for servers and for rests of clients as often as they compute.
PYTEST_PROCESSES = processors.count() + 1


def say(words):
    print(f"[dev] {words}", file=sys.stderr, flush=True)


def bazel(command, *arguments):
    progress = [] if sys.stderr.isatty() else ["--curses=no", "--show_progress_rate_limit=30"]
    return ["bazel", f"--output_user_root={CACHE}/bazel", command, f"--disk_cache={CACHE}/bazel-disk", "--show_progress",
            *progress, *arguments]


class QueryFailed(Exception):
    pass


def query(expression, *flags):
    """The labels that a Bazel query finds, or QueryFailed. With --keep_going, what it does not know is passed over."""
    command = ["bazel", f"--output_user_root={CACHE}/bazel", "query", "--noshow_progress", "--noimplicit_deps", *flags,
               expression]
    try:
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600)
    except subprocess.TimeoutExpired as error:
        raise QueryFailed(f"Bazel took longer than 10 minutes to tell which tests to run: {expression}") from error
    if result.returncode != 0 and not (result.returncode == 3 and "--keep_going" in flags):
        raise QueryFailed(f"Bazel cannot tell which tests to run: {expression}")
    return result.stdout.split()


def threaded(tests):
    """Returns the Bazel tests that need a source that starts a thread."""
    if not tests:
        return []
    found = subprocess.run(["git", "grep", "-lE", tiers.STARTS_THREAD, "--", "*.cc", "*.h"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE, text=True, timeout=60).stdout.split()
    sources = [label for path in found for label in changed.bazel_patterns(path, changed.exists)]
    return query(tiers.threaded_query(tests, sources), "--keep_going")


@functools.cache
def torch_free_tests():
    return query(tiers.TORCH_FREE_TESTS)


def install(*parts):
    return ["tools/dev/install.sh", *parts]


class TestRun:
    """The steps of one run, one after the other, with what came of them."""

    def __init__(self, folder, until=None, long=False, again=True, stress=False, sanitizers_until=None):
        self.folder = folder  # for the files that steps leave
        self.until = until    # of time.monotonic(): no optional step runs longer; None: no limit
        self.sanitizers_until = sanitizers_until  # likewise for those of the first tier
        self.long = long      # every test in its long version
        self.again = again    # also what passed before on the same files
        self.stress = stress  # other work keeps the cores busy, so no result of before counts, Bazel's neither
        self.table = []       # (step, seconds, passed, failed)
        self.failures = []
        self.unreached = []
        self.background = []

    def path(self, name):
        return os.path.join(self.folder, name.replace(" ", "-").replace("/", "-"))

    def step(self, name, kind, command, minutes, file=None, env=None, optional=False, until=None, names=()):
        """Runs a step, and returns whether it passed. `kind` and `file` say where results.py finds its tests; a step of
        kind "one" counts as one test. `optional`: of the second tier, which ends at `self.until`. `until`: when a step of
        the first ends that need not be reached. `names`: its tests, if they are known before."""
        limit = minutes * 60
        left = None
        until = self.until if optional else until
        if until is not None:
            left = until - time.monotonic()
            if left < 60:
                self.unreached += names or [name]
                return True
        say(name)
        started = time.monotonic()
        status = process.run(command, limit if left is None else min(limit, left), env=env, cwd=ROOT)
        seconds = time.monotonic() - started
        passed, failed = ([name], []) if kind == "one" and status == 0 else results.read(kind, file)
        if status is None and left is not None and left <= limit:
            finished = {*passed, *failed}
            self.unreached += [test for test in names if test not in finished] or [f"{name}, after {len(finished)} tests"]
        elif status is None:
            failed.append(f"ran longer than its limit of {minutes} minutes: {' '.join(command)}")
        elif status != 0 and not failed:
            failed.append(f"exit status {status}")
        self.table.append((name, seconds, len(passed), len(failed)))
        self.failures += [f"{name}: {test}" for test in failed]
        say(f"{name}: {seconds:.0f} s")
        return not failed

    def step_of_files(self, name, kind, command, file, env):
        """A step of the first tier whose outcome depends on the files of the tree alone. It need not run again on the same
        files, as Bazel does with its tests."""
        files = record.files_of(ROOT)
        before = None if self.again else record.passed_before(CACHE, name, files)
        if before is not None:
            say(f"{name}: passed before on the same files")
            self.table.append((f"{name} (as before)", 0, before, 0))
            return True
        passed = self.step(name, kind, command, TEST_MINUTES, file, env)
        if passed and record.files_of(ROOT) == files:
            record.keep_pass(CACHE, name, files, self.table[-1][2])
        return passed

    def chosen_by(self, name, choose):
        """What `choose` finds by Bazel queries. If one fails, that is a failed step, and nothing is found."""
        started = time.monotonic()
        try:
            return choose()
        except QueryFailed as error:
            say(str(error))
            self.table.append((name, time.monotonic() - started, 0, 1))
            self.failures.append(f"{name}: {error}")
            return []

    def torch_free_tests(self):
        return self.chosen_by("query of the torch-free tests", torch_free_tests)

    def begin_install(self, *parts):
        """Installs beside the next steps. `finish_installs` waits."""
        log = self.path(f"install {'-'.join(parts)}.log")
        self.background.append((parts, process.Background(install(*parts), INSTALL_MINUTES * 60, log)))

    def finish_installs(self):
        """What failed is tried once more in the open, so that its messages are seen."""
        for parts, command in self.background:
            command.finish()
            self.step(f"packages, {', '.join(parts).replace('_', ' ')}", "one", install(*parts), INSTALL_MINUTES)
        self.background = []

    def bazel_tests(self, name, targets, *flags, long=False, optional=False, until=None):
        if not targets:  # their query failed, or found none
            self.table.append((name, 0, 0, 1))
            self.failures.append(f"{name}: there is no target")
            return False
        file = self.path(f"{name}.json")
        pattern_file = self.path(f"{name}.targets")
        with open(pattern_file, "w", encoding="utf-8") as patterns:
            patterns.write("\n".join(targets) + "\n")
        long = long or self.long
        command = bazel("test", f"--build_event_json_file={file}", "--keep_going", "--build_tests_only",
                        *(["--test_env=BERTH_FULL=1", "--test_timeout=14400"] if long else []),
                        *(["--nocache_test_results"] if self.stress else []), *flags,
                        f"--target_pattern_file={pattern_file}")
        return self.step(name, "bazel", command, FULL_MINUTES if long or optional else TEST_MINUTES, file,
                         optional=optional, until=until, names=[target for target in targets if "..." not in target])

    def pytest(self, name, python, paths, *, processes=None, long=False, optional=False, whole=False):
        """whole: the paths are all of this step in the first tier."""
        file = self.path(f"{name}.xml")
        long = long or self.long
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={file}", "--durations=10",
                   f"--timeout={0 if long else PYTEST_TIMEOUT_S}",
                   *(["-n", str(processes), "--dist=loadgroup"] if processes else []), *paths]
        env = {"BERTH_BIN": f"{ROOT}/bazel-bin", "BERTH_CLIENTS_VENV": f"{CACHE}/clients-venv",
               **({"BERTH_FULL": "1"} if long else {})}
        if whole and not long and not optional:
            return self.step_of_files(name, "pytest", command, file, env)
        return self.step(name, "pytest", command, FULL_MINUTES if long or optional else TEST_MINUTES, file, env, optional,
                         names=paths)

    def parity(self, name, *arguments, optional=False):
        file = self.path(f"{name}.log")
        if optional and self.until is not None:
            arguments = [*arguments, f"--seconds={max(0, int(self.until - time.monotonic()))}"]
        command = [ORACLE_PYTHON, "tools/parity/run.py", f"--log={file}", f"--processes={processors.count()}", *arguments]
        env = {"BERTH_BIN": f"{ROOT}/bazel-bin"}
        if not optional:
            return self.step_of_files(name, "parity", command, file, env)
        passed = self.step(name, "parity", command, FULL_MINUTES, file, env, optional)
        self.unreached += results.parity_unreached(file)
        return passed

    def asan(self, name, tests, **options):
        self.bazel_tests(f"{name}, asan+ubsan", tests, "--config=asan", **options)

    def tsan(self, name, tests, **options):
        self.bazel_tests(f"{name}, tsan", tests, "--config=tsan", **options)

    # The address sanitizer and the fuzzers share a configuration, and so what clang compiles.
    def sanitizers(self, parsers, threaded):
        """Runs the first tests under the address sanitizer, then the fuzzers, then the second under the thread sanitizer."""
        until = self.sanitizers_until
        self.step("fuzz crate", "one", install("fuzz_crate"), INSTALL_MINUTES, until=until)
        self.asan("Bazel tests", parsers, until=until)
        self.bazel_tests("Fuzzers", [tiers.FUZZERS], "--config=asan", until=until)
        self.tsan("Bazel tests", threaded, until=until)

    def first_tier(self):
        self.step("packages", "one", install("test_packages", "cuda_compiler"), INSTALL_MINUTES)
        self.begin_install("oracle", "gateway", "client_tools")
        self.begin_install("deploy_tools")
        self.step("build", "one", bazel("build", "--keep_going", "//...", *tiers.CUDA_LIBRARIES), BUILD_MINUTES)
        self.bazel_tests("Bazel tests", ["//...", *tiers.CUDA_TESTS])
        self.step("lint", "one", ["./dev", "lint"], 10)
        self.finish_installs()
        for name, python, paths in (("Python tests", ORACLE_PYTHON, tiers.PYTHON_TESTS),
                                    ("gateway tests", GATEWAY_PYTHON, tiers.GATEWAY_TESTS)):
            self.pytest(name, python, paths, processes=PYTEST_PROCESSES, whole=True)
        self.parity("parity, one of each kind", "--first")
        # Last, as there may not be time for all of it.
        torch_free = self.torch_free_tests()
        self.sanitizers(tiers.parsers(torch_free),
                        self.chosen_by("query of the tests with threads", lambda: threaded(torch_free)))

    def second_tier(self):
        """What is shortest and finds most comes first."""
        self.parity("parity, all cases", "--quick", optional=True)
        self.step("GPU programs", "one", bazel("build", *gpu_targets()), BUILD_MINUTES, optional=True)
        self.pytest("GPU archive", ORACLE_PYTHON, tiers.GPU_TESTS, optional=True)
        self.step("published tokenizers, packages", "one", install("published_tokenizers"), INSTALL_MINUTES, optional=True)
        self.pytest("published tokenizers", ORACLE_PYTHON, tiers.PUBLISHED_TESTS, optional=True)
        torch_free = self.torch_free_tests()
        self.asan("all torch-free tests", torch_free, optional=True)
        self.tsan("all torch-free tests", torch_free, optional=True)
        long = {"long": True, "optional": True}
        self.bazel_tests("long Bazel tests", tiers.LONG_BAZEL_TESTS, **long)
        self.parity("parity, all cases in all regimes", optional=True)
        self.pytest("long Python tests", ORACLE_PYTHON, tiers.LONG_PYTHON_TESTS, **long)
        self.step("GuideLLM", "one", install("guidellm"), INSTALL_MINUTES, optional=True)
        self.pytest("long gateway tests", GATEWAY_PYTHON, tiers.LONG_GATEWAY_TESTS, **long)
        with_torch = self.chosen_by("query of the tests with LibTorch", lambda: query(tiers.TORCH_TESTS))
        self.bazel_tests("Bazel tests with LibTorch, asan+ubsan", with_torch, "--config=asan_torch", optional=True)
        self.bazel_tests("Fuzzers, an hour each", [tiers.FUZZERS], "--config=asan", **long)

    def some(self, chosen):
        """chosen: Bazel targets and paths of Python tests."""
        fuzzers = [name for name in chosen if name.startswith(tiers.FUZZERS)]
        targets = [name for name in chosen if name.startswith(("//", "-//", ":")) and name not in fuzzers]
        gateway = [name for name in chosen if name.startswith("tests/gateway")]
        paths = [name for name in chosen if name not in (*fuzzers, *targets, *gateway)]
        for path in [*paths, *gateway]:
            if not os.path.exists(os.path.join(ROOT, path.split("::")[0])):
                sys.exit(f"[dev] error: not a Bazel target, and no such file: {path}")
        if any(target in tiers.CUDA_TESTS for target in targets):
            self.step("nvcc", "one", install("cuda_compiler"), INSTALL_MINUTES)
        if targets:
            self.bazel_tests("Bazel tests", targets)
        if fuzzers:
            self.step("fuzz crate", "one", install("fuzz_crate"), INSTALL_MINUTES)
            self.bazel_tests("Fuzzers", fuzzers,
                             "--config=asan")
        if not paths and not gateway:
            return
        if paths != ["tests/dev"]:
            self.step("build", "one", bazel("build", *tiers.PROGRAMS), BUILD_MINUTES)
        parts = [part for part, folder in (("gateway", "tests/gateway"), ("client_tools", ("tests/clients", "tests/text")),
                                           ("test_packages", "tests/e2e"), ("deploy_tools", "tests/deploy"),
                                           ("published_tokenizers", "tests/published"))
                 if any(path.startswith(folder) for path in [*paths, *gateway])]
        if self.long and gateway:
            parts.append("guidellm")
        self.step("packages", "one", install("oracle", *parts), INSTALL_MINUTES)
        if any(path.startswith("tests/gpu") for path in paths):
            self.step("nvcc", "one", install("cuda_compiler"), INSTALL_MINUTES)
            self.step("GPU programs", "one", bazel("build", *gpu_targets()), BUILD_MINUTES)
        for name, python, several in (("Python tests", ORACLE_PYTHON, paths), ("gateway tests", GATEWAY_PYTHON, gateway)):
            whole = any(os.path.isdir(os.path.join(ROOT, path)) for path in several)
            if several:
                self.pytest(name, python, several, processes=PYTEST_PROCESSES if whole else None)

    def changed(self):
        patterns, paths = changed.chosen()
        labels = self.chosen_by("query of the tests that depend on the changes",
                                lambda: changed.dependent_tests(patterns, query))
        say(f"Bazel tests: {' '.join(labels) or 'none'}; Python tests: {' '.join(paths) or 'none'}")
        self.step("packages", "one", install("test_packages"), INSTALL_MINUTES)
        self.step("lint", "one", ["./dev", "lint"], 10)
        if labels or paths:
            self.some([*labels, *paths])

    def report(self):
        """Prints the table, the failures and the count. A Bazel target in each configuration, a Python test and a parity
        checkpoint count as one test each, and so does each other step. Returns the exit status."""
        sys.stderr.flush()
        print(f"\n{'step':40} {'seconds':>8} {'passed':>8} {'failed':>8}")
        for name, seconds, passed, failed in self.table:
            print(f"{name:40} {seconds:8.0f} {passed:8} {failed:8}")
        for name in self.unreached:
            print(f"NOT REACHED {name}")
        for failure in self.failures:
            print(f"FAILED {failure}")
        print("Bazel targets, Python tests, parity checkpoints and other steps:")
        print(f"{sum(row[2] for row in self.table)} passed, {len(self.failures)} failed", flush=True)
        return 1 if self.failures else 0


def gpu_targets():
    return subprocess.run([sys.executable, "tools/gpu/pack.py", "--targets"], cwd=ROOT, check=True, timeout=60,
                          stdout=subprocess.PIPE, text=True).stdout.split()


def parse(argv):
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chosen", nargs="*", metavar="TARGET", help="a Bazel target or a Python test; none: the first tier")
    parser.add_argument("--full", action="store_true", help="both tiers; with TARGETs: their long versions")
    parser.add_argument("--minutes", type=int, help="both tiers, the second until this time has passed")
    parser.add_argument("--sanitizer_minutes", type=int,
                        help="end the first tier's sanitizers and fuzzers when this time has passed, and name the rest")
    parser.add_argument("--changed", action="store_true", help="what depends on files that differ from main")
    parser.add_argument("--sanitizers", action="store_true", help="the sanitizers and fuzzers of the first tier alone")
    parser.add_argument("--stress", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--again", action="store_true",
                        help="run Python tests and parity although they passed before on the same files")
    parser.add_argument("--status", action="store_true", help="print what the newest record says of HEAD")
    return parser.parse_args(argv)


def execute(run, arguments):
    """Runs what the arguments ask for. Returns the tier of the record; None: it was not a whole tier."""
    if arguments.chosen:
        run.some(arguments.chosen)
    elif arguments.changed:
        run.changed()
    elif arguments.sanitizers:
        run.step("packages", "one", install("test_packages"), INSTALL_MINUTES)
        torch_free = run.torch_free_tests()
        run.sanitizers(torch_free, torch_free)
    else:
        run.first_tier()
        first = "a part of the first" if run.unreached else "first"
        if arguments.full or arguments.minutes is not None:
            run.second_tier()
            return "full" if not run.unreached else f"{first}, and a part of full"
        return first
    return None


def main():
    process.interrupt_on_sigterm()
    arguments = parse(sys.argv[1:])
    if arguments.status:
        print(record.status(ROOT, CACHE))
        return
    started = time.monotonic()
    until, sanitizers_until = (None if minutes is None else started + 60 * minutes
                               for minutes in (arguments.minutes, arguments.sanitizer_minutes))
    commit = record.commit_of(ROOT)
    with tempfile.TemporaryDirectory(prefix="berth-test-run-") as folder:
        run = TestRun(folder, until, long=arguments.full and bool(arguments.chosen),
                      again=arguments.again or arguments.stress or bool(arguments.chosen), stress=arguments.stress,
                      sanitizers_until=sanitizers_until)
        try:
            with process.BusyCores(processors.count() if arguments.stress else 0):
                tier = execute(run, arguments)
        except KeyboardInterrupt:
            sys.exit("[dev] error: interrupted")
        finally:
            for _, command in run.background:
                command.cancel()
        status = run.report()
    if tier:
        record.write(ROOT, CACHE, commit, tier, run)
    sys.exit(status)


if __name__ == "__main__":
    main()
