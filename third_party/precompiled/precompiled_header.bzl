"""A precompiled header for g++: what takes seconds to parse is parsed once.

A target that depends on it and is compiled with `-include <header> -fpch-deps` reads the compiled form. The compiler
checks that both were compiled with the same options, and else reads the header's text: a difference costs time, not
correctness. -fpch-deps lets Bazel know each header that a source read in compiled form.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context

    # Beside each other: g++ looks for <header>.gch where it finds <header>.
    header = ctx.actions.declare_file(ctx.attr.name + ".h")
    compiled = ctx.actions.declare_file(ctx.attr.name + ".h.gch")
    dependencies = ctx.actions.declare_file(ctx.attr.name + ".d")
    ctx.actions.symlink(output = header, target_file = ctx.file.header)
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        use_pic = toolchain.needs_pic_for_dynamic_libraries(feature_configuration = features),
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
    )
    options = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = "c++-compile",
        variables = variables,
    )
    ctx.actions.run(
        mnemonic = "CppCompile",  # not sandboxed, as .bazelrc says
        progress_message = "Precompiling " + ctx.file.header.path,
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = "c++-compile"),
        # The compiled form keeps the list of its headers only where -MD asked for it.
        arguments = ["-x", "c++-header", "-MD", "-MF", dependencies.path] + options,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        ),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled, dependencies],
    )
    own = cc_common.create_compilation_context(headers = depset([header, compiled]))
    return [cc_common.merge_cc_infos(
        direct_cc_infos = [CcInfo(compilation_context = own)],
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    )]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(doc = "Those of the targets that read it."),
        "header": attr.label(allow_single_file = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
