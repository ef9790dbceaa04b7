"""The rules_cc names that rules_proto and Bazel's own tools load, mapped to Bazel 4's native rules.

Debian's packaged rules_cc needs a newer Bazel than Debian's packaged Bazel.
"""

cc_library = native.cc_library
cc_binary = native.cc_binary
cc_test = native.cc_test
cc_import = native.cc_import
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
cc_proto_library = native.cc_proto_library
cc_libc_top_alias = native.cc_libc_top_alias
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_library = native.objc_library
objc_import = native.objc_import
