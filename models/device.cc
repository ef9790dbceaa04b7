#include "models/device.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "models/kernels/cuda/dispatch.h"
#include "models/kernels/cuda/library.h"

namespace berth {
namespace {

// The arena as one device tensor, allocated once.
class TensorStorage : public ArenaStorage {
 public:
  explicit TensorStorage(at::Tensor bytes) : bytes_(std::move(bytes)) {}
  std::byte* base() const override { return static_cast<std::byte*>(bytes_.data_ptr()); }
  int64_t size_bytes() const override { return bytes_.numel(); }
  void Move(int64_t from, int64_t to, int64_t size_bytes) override {
    const at::Tensor source = bytes_.narrow(0, from, size_bytes);
    const bool overlap = from < to + size_bytes && to < from + size_bytes;
    bytes_.narrow(0, to, size_bytes).copy_(overlap ? source.clone() : source);
  }
  // Through host memory: simple, and no step waits for it but the one that follows a checkpoint.
  void Convert(int64_t from, int64_t from_bytes, int64_t to, int64_t to_bytes, Conversion convert) override {
    const auto in = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(from_bytes));
    const auto out = std::make_unique<std::byte[]>(static_cast<size_t>(to_bytes));
    Read(from, from_bytes, in.get());
    convert(in.get(), out.get());
    Write(to, to_bytes, out.get());
  }
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override {
    at::from_blob(out, {size_bytes}, at::kByte).copy_(bytes_.narrow(0, offset, size_bytes));
  }
  void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) override {
    bytes_.narrow(0, offset, size_bytes).copy_(at::from_blob(const_cast<std::byte*>(bytes), {size_bytes}, at::kByte));
  }
  void Poison(int64_t offset, int64_t size_bytes) override { bytes_.narrow(0, offset, size_bytes).fill_(0xFF); }

 private:
  at::Tensor bytes_;  // [size], uint8
};

}  // namespace

absl::StatusOr<at::Device> OpenDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("device: \"", name, "\" is neither cpu nor cuda"));
  }
  // Its static initialisers register CUDA with ATen; it stays loaded for the process's life.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("device: cuda: ", dlerror()));
  }
  if (!at::hasCUDA()) return absl::FailedPreconditionError("device: cuda: no GPU found");
  return at::Device(at::kCUDA, 0);
}

absl::StatusOr<std::string> LoadDeviceKernels(const at::Device& device) {
  if (!device.is_cuda()) return std::string();
  const absl::StatusOr<const cuda::Kernels*> kernels = cuda::LoadLibrary(cuda::LibraryPath());
  if (!kernels.ok()) return kernels.status();
  cuda::UseKernels(*kernels);
  return std::string((*kernels)->name);
}

absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateDeviceStorage(const at::Device& device, int64_t size_bytes) {
  if (device.is_cpu()) return CreateHostStorage(size_bytes);
  try {
    return std::make_unique<TensorStorage>(
        at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve an arena of ", size_bytes, " bytes on ",
                                                     device.str(), ": ", error.what_without_backtrace()));
  }
}

}  // namespace berth
