"""Files, functions and classes keep to the sizes of CONTRIBUTING.md, with named exceptions that may not grow."""

import pytest
from cpp_source import Reader
from sources import read, tracked

HEADER, SOURCE, FUNCTION, METHODS, ARGUMENTS = 250, 500, 50, 20, 5
CPP = (".cc", ".h", ".inc", ".cu", ".cuh")

# What may be larger: the most that it may be, and why. An exception that is no longer needed has to go. "To be split"
# names the seam for a case that has no other reason than how it grew.
FILES = {
    "clients/python/src/berth_client/types.py": (800, "./dev docs generates it from proto/"),
    "scheduler/tiers/prefix_tier.cc": (501, "to be split: what happens to files on the disk"),
    "flags/flag_value.h": (252, "templates for each kind of value, which cannot move to a source file"),
    "tests/models/sampling/sampler_test.cc": (568, "to be split: the tests of masks and those of logprobs"),
    "tests/server/api/test_server.h": (333, "to be split: its constructor into a source file"),
    "tests/text/pydantic_models.py": (548, "one list of models, one for each kind of field"),
}
FUNCTIONS = {
    "cache/prefix_index.cc:PrefixIndex::CheckIntegrity": (
        52, "checks every invariant in one walk of the tree; its two lambdas share the walk's counts"),
    "client/load/options.cc:LoadOptions::AddTo": (80, "a list of flags, one call each, with no branch"),
    "models/loader.cc:LoadedModel::Load": (82, "to be split: reading the configuration; filling ModelInfo"),
    "models/ops/gated_delta_net/cuda.cu:DeltaNetKernel": (
        56, "a CUDA kernel: its row, columns and state live in registers across the loop over tokens"),
    "models/ops/paged_attention/attention_kernel.cuh:AttentionKernel": (
        62, "a CUDA kernel: the lanes' maxima and sums live in registers across its loops"),
    "scheduler/request.cc:ValidateRequest": (53, "to be split: the check that tokens are in the vocabulary"),
    "server/main.cc:Run": (64, "the order of the start in one place, where each object outlives those after it"),
    "tests/cache/cache_property_test.cc:CacheProperty.EveryOperationKeepsWhatEverySequenceSees": (
        124, "to be split: the choice of an operation, with what is counted, into Simulation"),
    "tests/scheduler/output/beam_search_test.cc:Transcription": (
        73, "transcribes a function of transformers line by line, for comparison"),
    "tests/scheduler/engine_test.cc:EngineTest.RefusesByThePredictedWaitAndTheDeadline": (
        53, "to be split: refusals by max_wait, from \"100 tokens take\" on"),
    "tests/scheduler/load/wait_estimate_test.cc:RunTenants": (66, "to be split: making a request; comparing the results"),
    "tests/server/api/held_call.cc:HeldCall::Begin": (80, "one switch with a case for each CallState"),
    "tests/server/api/refusals_test.cc:RefusalsTest.EachRefusalIsCountedOnce": (80, "a table with a row for each refusal"),
    "tests/server/api/test_server.h:TestServer": (96, "to be split: a function for each service's options"),
    "tests/server/config_test.cc:EveryFlag": (100, "a list with a line for each flag"),
    "tests/server/config_test.cc:ConfigTest.EveryFlagReachesItsField": (100, "a line for each flag"),
    "tests/server/config_test.cc:ConfigTest.RefusesNamingFlagValueAndLimit": (120, "a table with a row for each message"),
    "tests/text/hostile_grammars.cc:LongSchemas": (90, "a list of schemas, one each statement"),
    "tests/text/hostile_grammars.cc:HostileGrammars": (90, "a list of grammars, one each statement"),
}
CLASSES = {
    "cache/cache.h:Cache": (21, "to be split: what leases and tiers call from the watch of prefixes"),
    "cache/lease.h:SequenceLease": (28, "to be split: saving and loading; sharing prefixes"),
    "cache/prefix_index.h:PrefixIndex": (22, "to be split: the watch of prefixes"),
    "models/checkpoint/json_config.h:ConfigReader": (
        26, "a getter for each type of value, with and without a fallback"),
    "models/step/step_batch.h:StepBatch": (38, "an accessor for each table of a step; only Fill changes them"),
    "scheduler/scheduler.h:Scheduler": (26, "to be split: figures for the engine (backlog, queues, limits, tiers)"),
    "scheduler/tiers/swap_manager.h:SwapManager": (21, "to be split: what it passes on to the prefix tier unchanged"),
}
CONSTRUCTORS = {
    "scheduler/engine.h:Engine": (6, "private: Create checks the options and makes the scheduler that it passes"),
    "tests/cache/prefix_mirror_test.cc:Watched": (6, "to be split: an Options struct for what has a default"),
    "tests/scheduler/scheduler_harness.h:SchedulerHarness": (6, "to be split: an Options struct for what has a default"),
}


def measure(path, text):
    """Returns four dicts of what is over its limit: files, functions, public methods and constructor arguments."""
    limit = HEADER if path.endswith(".h") else SOURCE
    files = {path: text.count("\n")} if text.count("\n") > limit else {}
    if not path.endswith(CPP):
        return files, {}, {}, {}
    found = Reader(text)
    return (files, {f"{path}:{f.name}": f.lines for f in found.functions if f.lines > FUNCTION},
            {f"{path}:{c.name}": len(c.public_methods) for c in found.classes if len(c.public_methods) > METHODS},
            {f"{path}:{c.name}": c.constructor_arguments for c in found.classes if c.constructor_arguments > ARGUMENTS})


def complaints(sizes, exceptions):
    """Says what is too large, and which exception is not needed."""
    said = [f"{name} has {size}, of at most {exceptions[name][0] if name in exceptions else 'the limit'}"
            for name, size in sizes.items() if name not in exceptions or size > exceptions[name][0]]
    return said + [f"{name} needs no exception any more" for name in exceptions if name not in sizes]


@pytest.fixture(scope="module")
def sizes():
    found = ({}, {}, {}, {})
    for path in tracked():
        if path.endswith((*CPP, ".py", ".rs")):
            for all_of_kind, of_path in zip(found, measure(path, read(path))):
                all_of_kind.update(of_path)
    return found


@pytest.mark.parametrize("kind, exceptions", [(0, FILES), (1, FUNCTIONS), (2, CLASSES), (3, CONSTRUCTORS)])
def test_sizes_are_those_of_contributing(sizes, kind, exceptions):
    assert complaints(sizes[kind], exceptions) == []
    assert all(len(reason) > 10 for _, reason in exceptions.values())


def test_the_limits_are_those_of_contributing():
    words = " ".join(read("CONTRIBUTING.md").split())
    assert (f"headers of {HEADER} lines, sources of {SOURCE}, functions of {FUNCTION}, {METHODS} public methods and "
            f"{ARGUMENTS} constructor arguments") in words


def test_an_exception_may_neither_grow_nor_stay():
    assert complaints({"a": 60}, {}) == ["a has 60, of at most the limit"]
    assert complaints({"a": 60}, {"a": (60, "reason")}) == []
    assert complaints({"a": 61}, {"a": (60, "reason")}) == ["a has 61, of at most 60"]
    assert complaints({}, {"a": (60, "reason")}) == ["a needs no exception any more"]


def test_what_is_too_large_is_found():
    lines = "  int a;\n" * 49
    source = "void Small() {\n" + lines[9:] + "}\nint A::Large() const {\n" + lines + "}\n" + "\n" * 500
    assert measure("a/b.cc", source) == ({"a/b.cc": 601}, {"a/b.cc:A::Large": 51}, {}, {})
    assert measure("a/b.h", "\n" * 251)[0] == {"a/b.h": 251} and measure("a/b.cc", "\n" * 500)[0] == {}
    assert measure("a/b.py", "\n" * 501)[0] == {"a/b.py": 501}
    methods = "".join(f"  int f{i}() const;\n" for i in range(20))
    head = "class A : public B {\n public:\n  A(int a, B<int, int> b, int c = f(1, 2), int d, int e);\n"
    tail = "  int size = Max(1, 2);\n  A(const A&) = delete;\n  friend void F(int);\n private:\n  int g();\n};\n"
    assert measure("a/b.h", head + methods + tail) == ({}, {}, {}, {})
    more = head.replace("int e", "int e, int f") + methods + "  static A* Make();\n" + tail
    assert measure("a/b.h", more) == ({}, {}, {"a/b.h:A": 21}, {"a/b.h:A": 6})


@pytest.mark.parametrize("source, functions", [
    ("namespace a {\nvoid F() {\n  if (x) {\n  }\n}\n}  // namespace a", [("F", 2, 4)]),
    ("struct A {\n  A() : a_{1}, b_(2) {\n  }\n  bool operator==(const A& a) const { return true; }\n};",
     [("A", 2, 2), ("operator==", 4, 1)]),
    ('void F() { Say("}\\"{", \'}\', R"({ " )"); }  // }\nint G(A a = {}) {\n}', [("F", 1, 1), ("G", 2, 2)]),
    ("const int kA[] = {1, 2};\nconst auto f = [](int a) { return a; };\nenum class E { kA };", []),
    ("template <typename T = int>\nstd::map<int, A> F(T t) {\n  return {};\n}", [("F", 1, 4)]),
    ("#define F(a) \\\n  void a() {\n\nTEST_F(A, B) {\n}", [("A.B", 4, 2)]),
    ("__global__ void __launch_bounds__(kN) F(int a) {\n}", [("F", 1, 2)]),
    ("absl::Status F() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {\n}\nauto G() -> int {\n}", [("F", 1, 2), ("G", 3, 2)]),
    ("struct A { int a; } b;\nint n = 1'000;\nvoid F() {\n}", [("F", 3, 2)]),
])
def test_functions_are_found(source, functions):
    assert [(f.name, f.line, f.lines) for f in Reader(source).functions] == functions


def test_braces_that_do_not_match_are_an_error():
    for source in ("void F() {", "}"):
        with pytest.raises(AssertionError):
            Reader(source)
