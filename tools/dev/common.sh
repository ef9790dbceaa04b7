# The paths, messages and Bazel calls that `dev` and tools/dev/*.sh share. Source it from the repository's root.
# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is used where it is sourced

CACHE="${BERTH_CACHE:-$HOME/.cache/berth}"
TORCH_VERSION=2.11.0
TORCH_DIR="$CACHE/libtorch-$TORCH_VERSION"
CUDA_VERSION=13.0.88
CUDA_DIR="$CACHE/cuda-$CUDA_VERSION"
FLASHINFER_VERSION=0.6.9
FLASHINFER_DIR="$CACHE/flashinfer-$FLASHINFER_VERSION"
ORACLE_DIR="$CACHE/oracle-venv"
CLIENTS_DIR="$CACHE/clients-venv"
GATEWAY_DIR="$CACHE/gateway-venv"
PEERS_DIR="$CACHE/peers-venv"
OPENVINO_DIR="$CACHE/openvino-venv"
VLLM_DIR="$CACHE/peers-vllm-venv"
CTRANSLATE2_DIR="$CACHE/peers-ctranslate2-venv"
STRUCTURE_DIR="$CACHE/peers-structure-venv"
CUDA_RUNTIME_DIR=.deps/libtorch_cuda/torch/lib
CHART_TOOLS_DIR="$CACHE/chart-tools"
GO_TOOLS_DIR="$CACHE/go-tools"
NODE_DIR="$CACHE/node-client"
ROOTS_DIR="$CACHE/roots"

APT_PACKAGES=(
  bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib bazel-platforms
  g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libspdlog-dev libssl-dev
  prometheus-cpp-dev libxxhash-dev libzip-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev
  python3 python3-pip python3-venv ca-certificates
)
CLANG_APT_PACKAGES=(clang-14 clang-format-14 libclang-rt-14-dev)
# chromium draws the page of a load test. It is the largest: about 124 MB to load and 414 MB on disk, with its libraries.
TEST_APT_PACKAGES=("${CLANG_APT_PACKAGES[@]}" shellcheck cbindgen prometheus curl debootstrap iproute2 openssl chromium)
PACKAGE_APT_PACKAGES=(patchelf)

say() { printf '\033[1m[dev]\033[0m %s\n' "$*" >&2; }
die() { printf '[dev] error: %s\n' "$*" >&2; exit 1; }

# timed NAME COMMAND...: says how many seconds the command took, if they are worth saying.
timed() {
  local name="$1" started=$SECONDS
  shift
  "$@"
  [ $((SECONDS - started)) -lt 5 ] || say "$name: $((SECONDS - started)) s"
}

# Bazel's progress: continuous on a terminal, a line every 30 seconds in a log.
PROGRESS=(--show_progress)
[ -t 2 ] || PROGRESS+=(--curses=no --show_progress_rate_limit=30)

run_bazel() {
  local command="$1"
  shift
  bazel --output_user_root="$CACHE/bazel" "$command" --disk_cache="$CACHE/bazel-disk" "${PROGRESS[@]}" "$@"
}

bazel_build() { timed "bazel build" run_bazel build "$@"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "installing Debian packages needs root or sudo: $*"
  fi
}

# install_packages PACKAGE...: installs what dpkg does not list as installed.
install_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
  done
  [ "${#missing[@]}" = 0 ] && return
  command -v apt-get >/dev/null || die "apt-get not found: Berth builds on Debian 12; missing packages: ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  as_root apt-get update -q >"$CACHE/apt.log" 2>&1 || true
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" \
    >>"$CACHE/apt.log" 2>&1 || die "apt-get install failed, see $CACHE/apt.log"
}
