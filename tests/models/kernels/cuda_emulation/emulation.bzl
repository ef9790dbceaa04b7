"""How CUDA kernels are compiled for the emulation."""

EMULATION_COPTS = [
    "-fno-strict-aliasing",  # numbers are loaded by fours, as words
    "-ffp-contract=off",  # what is fused is said to be
    "-Wno-unknown-pragmas",
    # A load of four numbers from an address that a GPU would refuse ends the program.
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
] + select({
    # The address sanitizer checks the accesses instead.
    "//:asan_torch": [],
    # Calls hooks at each access to memory, which races.cc has. Nothing is linked for it.
    "//conditions:default": [
        "-fsanitize=thread",
        "--param=tsan-instrument-func-entry-exit=0",
    ],
})
