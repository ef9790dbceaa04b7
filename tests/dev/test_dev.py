"""What `./dev test` is made of: the choice of --changed, the counting of results, limits of time, the table, the records."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/dev"))

import changed  # noqa: E402
import process  # noqa: E402
import record  # noqa: E402
import results  # noqa: E402
import test as dev_test  # noqa: E402

TREE = {"cache/BUILD", "cache/lease.cc", "server/BUILD", "server/config.cc", "server/api/BUILD", "server/request/validation.cc",
        "tests/e2e/structures.py", "tests/e2e/test_server.py", "tools/lint/lint_text.py", "models/kernels/BUILD",
        "models/kernels/cpu/BUILD", "models/kernels/cpu/exp.inc", "README.md", "berth.bzl"}


def choose(*files):
    return changed.choose(files, TREE.__contains__)


def test_a_source_concerns_its_dependents():
    assert choose("cache/lease.cc") == (["//cache:lease.cc"], ["tests/e2e"])
    assert choose("models/kernels/cpu/exp.inc")[0] == ["//models/kernels/cpu:exp.inc"]


def test_a_removed_file_and_a_build_file_concern_their_package():
    assert choose("server/api/gone.cc")[0] == ["//server/api:all"]
    assert choose("cache/BUILD")[0] == ["//cache:all"]


def test_the_rules_concern_everything():
    assert choose("berth.bzl", "cache/lease.cc")[0] == ["//..."]
    assert choose("BUILD")[0] == ["//..."]


def test_a_python_test_concerns_itself_and_a_helper_its_folder():
    assert choose("tests/e2e/test_server.py") == ([], ["tests/e2e/test_server.py"])
    assert choose("tests/e2e/structures.py") == ([], ["tests/e2e"])
    assert choose("tests/models/ops/cuda_code_test.py") == ([], ["tests/models"])


def test_what_python_tests_share_concerns_their_folders_alone():
    assert {"tests/bench", "tests/e2e", "tests/gateway"} < set(choose("tests/testing/berth_server.py")[1])
    of_all = choose("tests/conftest.py")[1]
    assert {"tests/dev", "tests/e2e", "tests/gateway"} < set(of_all)
    assert not {"tests", "tests/testing"} & {*of_all, *choose("tests/testing/berth_server.py")[1]}


def test_a_tool_concerns_the_tests_of_its_folder():
    assert choose("tools/lint/lint_text.py") == ([], ["tests/docs"])


def test_a_folder_stands_for_its_files():
    assert choose("tests/e2e/test_server.py", "cache/lease.cc")[1] == ["tests/e2e"]


def test_documents_concern_their_tests():
    assert choose("README.md") == ([], ["tests/docs"])


def test_the_folders_of_the_table_exist():
    root = changed.ROOT
    for folder, tests in changed.PYTHON_TESTS.items():
        for path in [folder, *tests]:
            assert os.path.exists(os.path.join(root, path)), path


def test_bazel_events_are_counted():
    events = ['{"id":{"testSummary":{"label":"//a:x"}},"testSummary":{"overallStatus":"PASSED"}}',
              '{"id":{"testSummary":{"label":"//a:y"}},"testSummary":{"overallStatus":"TIMEOUT"}}',
              '{"id":{"progress":{}},"progress":{}}']
    assert results.bazel_results(events) == (["//a:x"], ["//a:y"])


def test_pytest_cases_are_counted():
    xml = """<testsuites><testsuite><testcase classname="m" name="good"/>
        <testcase classname="m" name="bad"><failure/></testcase>
        <testcase classname="m" name="left"><skipped/></testcase></testsuite></testsuites>"""
    assert results.pytest_results(xml) == (["m.good"], ["m.bad"])


def test_parity_cases_are_counted():
    lines = ["case                           alone        logits", "llama                          ok 5          ok 9",
             "mamba2                       2 MISS             -", "    alone: prompt of 3: token 1 is 4", "MISS mamba2, alone: x",
             "2 comparisons, 0 ties (margin below 0.0001), 2 misses"]
    assert results.parity_results(lines) == (["llama"], ["mamba2"])


def test_a_step_that_left_no_file_has_no_results(tmp_path):
    assert results.read("bazel", str(tmp_path / "none")) == ([], [])


def test_a_run_that_was_ended_leaves_what_it_had(tmp_path):
    events = tmp_path / "events"
    events.write_text('{"id":{"testSummary":{"label":"//a:x"}},"testSummary":{"overallStatus":"PASSED"}}\n{"id":{"te')
    assert results.read("bazel", str(events)) == (["//a:x"], [])


def test_a_group_is_not_a_part_of_a_tests_name():
    xml = '<testsuite><testcase classname="m" name="bad[a@b]@tests/e2e/test_x.py"><failure/></testcase></testsuite>'
    assert results.pytest_results(xml) == ([], ["m.bad[a@b]"])


def test_a_command_past_its_limit_is_ended_with_all_that_it_started(tmp_path):
    # The child holds the pipe's other end open for as long as it runs, and ignores interrupts as a hanging one does.
    end, other = os.pipe()
    script = f"bash -c 'trap \"\" INT; echo ready >&{other}; sleep 1000' & wait"
    command = process.Background(["bash", "-c", script], 0.01, str(tmp_path / "log"), pass_fds=[other])
    os.close(other)
    with open(end, encoding="utf-8") as pipe:
        assert pipe.readline() == "ready\n"
        assert command.finish() is None
        assert pipe.read() == ""  # returns once no process has the other end


def test_the_exit_status_and_the_environment_are_the_commands():
    assert process.run(["sh", "-c", 'exit "$CODE"'], 600, env={"CODE": "7"}) == 7


def new_run(tmp_path, **fields):
    return dev_test.TestRun(str(tmp_path), **fields)


def test_a_step_that_fails_or_hangs_is_named_and_the_next_one_runs(tmp_path, capsys):
    run = new_run(tmp_path)
    assert not run.step("one", "one", ["sh", "-c", "exit 3"], 10)
    assert not run.step("two", "one", ["sleep", "1000"], 0.0001)
    assert run.step("three", "one", ["true"], 10)
    assert run.report() == 1
    printed = capsys.readouterr().out
    assert "FAILED one: exit status 3" in printed
    assert "FAILED two: ran longer than its limit of 0.0001 minutes: sleep 1000" in printed
    assert printed.endswith("1 passed, 2 failed\n")


@pytest.fixture
def failing_bazel(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bazel").write_text("#!/bin/sh\nexit 7\n")
    (programs / "bazel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


@pytest.mark.usefixtures("failing_bazel")
def test_a_query_that_fails_is_a_failed_step_and_the_next_one_runs(tmp_path, capsys):
    run = new_run(tmp_path)
    assert run.chosen_by("query", lambda: dev_test.query("//...")) == []
    assert not run.bazel_tests("Bazel tests", [])
    assert run.step("next", "one", ["true"], 10)
    assert run.report() == 1
    printed = capsys.readouterr().out
    assert "FAILED query: Bazel cannot tell which tests to run: //...\n" in printed
    assert "FAILED Bazel tests: there is no target\n" in printed
    assert printed.endswith("1 passed, 2 failed\n")


def test_what_there_is_no_time_for_is_named_and_fails_nothing(tmp_path, capsys):
    run = new_run(tmp_path, until=time.monotonic() + 30)
    assert run.step("late", "one", ["false"], 10, optional=True, names=["//a:x", "//a:y"])
    run.until = time.monotonic() + 3600
    assert run.step("in time", "one", ["true"], 10, optional=True)
    assert run.report() == 0
    printed = capsys.readouterr().out
    assert "NOT REACHED //a:x\nNOT REACHED //a:y\n" in printed and "1 passed, 0 failed" in printed


@pytest.mark.usefixtures("failing_bazel")
def test_sanitizers_without_time_are_named_and_those_with_time_must_pass(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dev_test, "install", lambda *parts: ["true"])
    run = new_run(tmp_path, sanitizers_until=time.monotonic() + 30)
    run.sanitizers(["//a:parser"], ["//a:threaded"])
    assert run.report() == 0
    printed = capsys.readouterr().out
    assert "NOT REACHED //a:parser\n" in printed and "NOT REACHED //a:threaded\n" in printed
    for until in (None, time.monotonic() + 3600):
        run = new_run(tmp_path, sanitizers_until=until)
        run.sanitizers(["//a:parser"], ["//a:threaded"])
        assert run.report() == 1
        assert "FAILED Bazel tests, asan+ubsan: exit status 7" in capsys.readouterr().out


def repository(folder):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True,
                       capture_output=True, timeout=60)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    return git


def test_the_status_is_of_head(tmp_path):
    root, cache = tmp_path / "root", str(tmp_path / "cache")
    root.mkdir()
    git = repository(root)
    assert "has no record, and no commit before it a green one" in record.status(root, cache)
    run = new_run(tmp_path)
    run.step("one", "one", ["true"], 10)
    record.write(root, cache, record.commit_of(root), "first", run)
    assert record.status(root, cache).endswith("green")
    git("commit", "-q", "--allow-empty", "-m", "second")
    assert "has no record; 1 commits since" in record.status(root, cache)
    run.step("two", "one", ["false"], 10)
    record.write(root, cache, record.commit_of(root), "first", run)
    assert record.status(root, cache).endswith("red: 1 failed\n  two: exit status 1")
    (root / "file").write_text("x")
    assert record.status(root, cache).startswith("files differ from HEAD")


def test_a_run_on_changed_files_is_no_record_of_head(tmp_path):
    root, cache = tmp_path / "root", str(tmp_path / "cache")
    root.mkdir()
    repository(root)
    commit = record.commit_of(root)
    (root / "file").write_text("x")
    record.write(root, cache, commit, "first", new_run(tmp_path))
    assert "has no record" in record.status(root, cache)


def test_old_records_go(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "KEPT", 2)
    folder = tmp_path / "test-records"
    folder.mkdir()
    for day in range(1, 5):
        (folder / f"2020010{day}T000000-abc.json").write_text(json.dumps({"clean": True}))
    record.write(tmp_path, str(tmp_path), ("", False), "first", new_run(tmp_path))
    assert len(list(folder.iterdir())) == 2


def test_busy_cores_end_with_the_run():
    busy = process.BusyCores(1)
    with busy:
        assert busy.loops[0].poll() is None
    assert busy.loops[0].poll() == -signal.SIGKILL


def commands_of(monkeypatch, run, *chosen):
    """What the steps would run, and their limits."""
    ran = []

    def record_command(command, limit_s, env=None, cwd=None):
        ran.append((command, limit_s, env or {}))
        return 0

    monkeypatch.setattr(process, "run", record_command)
    run.some(chosen)
    return ran


def test_what_is_chosen_runs_in_its_long_version_if_asked(tmp_path, monkeypatch):
    soak, fuzzers = "tests/gateway/test_guidellm.py", "//tests/fuzz"
    for long in (False, True):
        ran = commands_of(monkeypatch, new_run(tmp_path, long=long), soak, fuzzers)
        (pytest_command, limit, env), = (step for step in ran if "pytest" in step[0])
        assert (env.get("BERTH_FULL"), "--timeout=0" in pytest_command) == (("1", True) if long else (None, False))
        assert (limit > 60 * 60) == long
        bazel_command, = (step[0] for step in ran if "test" in step[0] and "--config=asan" in step[0])
        assert ("--test_env=BERTH_FULL=1" in bazel_command) == long
        assert any("guidellm" in step[0] for step in ran) == long


def test_a_run_that_is_told_to_end_ends_its_step(tmp_path):
    end, other = os.pipe()
    # The command and its child hold the pipe's other end open for as long as they run.
    program = ("import os, sys; sys.path.insert(0, sys.argv[1]); import process; process.interrupt_on_sigterm()\n"
               "script = f'exec 3>/proc/{os.getpid()}/fd/{sys.argv[2]}; echo ready >&3; sleep 300; true'\n"
               "process.run(['bash', '-c', script], 1000)")
    tools = os.path.join(changed.ROOT, "tools/dev")
    run = subprocess.Popen([sys.executable, "-c", program, tools, str(other)], pass_fds=[other], stderr=subprocess.DEVNULL)
    os.close(other)
    with open(end, encoding="utf-8") as pipe:
        assert pipe.readline() == "ready\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=600) != 0
        assert pipe.read() == ""


def test_an_interrupt_while_a_step_starts_ends_it(tmp_path, monkeypatch):
    """It comes when the command runs, and nothing has its process yet."""
    started = []

    def interrupted(*arguments, **keywords):
        started.append(popen(*arguments, **keywords))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sleep", "1000"], 1000)
    assert started[0].returncode is not None


def test_a_step_runs_again_only_if_a_file_changed(tmp_path, monkeypatch):
    root, ran = tmp_path / "root", tmp_path / "ran"
    root.mkdir()
    repository(root)
    monkeypatch.setattr(dev_test, "ROOT", str(root))
    monkeypatch.setattr(dev_test, "CACHE", str(tmp_path / "cache"))

    def step(command="true", **fields):
        run = new_run(tmp_path, **fields)
        run.step_of_files("one", "one", ["sh", "-c", f"echo >>{ran}; {command}"], None, {})
        return run.table[0][0], run.table[0][2], len(ran.read_text())

    assert step(again=False) == ("one", 1, 1)
    assert step(again=False) == ("one (as before)", 1, 1)
    assert step(again=True) == ("one", 1, 2)
    (root / "new").write_text("x")
    assert step("false", again=False) == ("one", 0, 3)
    assert step("false", again=False) == ("one", 0, 4)
    assert step("echo x >>new", again=False) == ("one", 1, 5)
    assert step(again=False) == ("one", 1, 6)


def test_a_setup_that_fails_ends_its_download(tmp_path):
    """The crate fails while LibTorch's download, which is a stand-in, holds the other end of a pipe."""
    programs = tmp_path / "bin"
    programs.mkdir()
    end, other = os.pipe()
    for name, script in {"dpkg-query": "echo install ok installed", "python3": f"echo ready >&{other}; exec sleep 1000",
                         "cargo": '[ "$1" != --version ] || { echo cargo 1.99.0; exit; }; '
                                  f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 1"}.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "BERTH_CACHE": str(tmp_path / "cache")}
    setup = subprocess.Popen([os.path.join(changed.ROOT, "dev"), "setup"], env=environment, pass_fds=[other],
                             stderr=subprocess.DEVNULL)
    os.close(other)
    with open(end, encoding="utf-8") as pipe:
        assert pipe.readline() == "ready\n"
        (tmp_path / "go").touch()
        assert setup.wait(timeout=600) == 1
        assert pipe.read() == ""  # returns once no process has the other end


def test_packages_of_debian_are_those_of_the_chosen_tests():
    script = ("source tools/dev/common.sh; source tools/dev/install.sh; install_packages() { echo \"$@\"; }; "
              "install_packages_of_tests \"$@\"")

    def installed(*arguments):
        return subprocess.run(["bash", "-euc", script, "bash", *arguments], cwd=changed.ROOT, check=True, text=True,
                              stdout=subprocess.PIPE, timeout=60).stdout.split()

    assert installed("//tests/cache/...", "tests/dev", "--again") == []
    assert "clang-14" in installed("//tests/fuzz:grammar_fuzz") and "chromium" not in installed("//tests/fuzz")
    assert "chromium" in installed("tests/e2e/test_server.py") and "patchelf" not in installed("tests/e2e")
    assert {"chromium", "patchelf"} <= {*installed("tests/deploy")} & {*installed()} & {*installed("--changed")}


def test_lint_can_be_the_first_command(tmp_path):
    """It installs packages where Berth's cache folder is not there yet. The programs that it calls are stand-ins."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {"dpkg-query": "exit 1", "apt-get": "echo apt-get", "id": "echo 0", "clang-format-14": "",
                         "shellcheck": "", "python3": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    cache = tmp_path / "home" / "berth"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "BERTH_CACHE": str(cache)}
    done = subprocess.run([os.path.join(changed.ROOT, "dev"), "lint"], env=environment, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    assert (cache / "apt.log").read_text() == "apt-get\n" * 2
