#include "models/runner/torch_runner.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "models/step/device_error.h"

namespace berth {
namespace {

// Waits until the device has done the step.
void WaitFor(const at::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace

absl::Status TorchRunner::Run(const StepPlan& plan, StepResult* result) {
  const c10::InferenceMode no_autograd;
  const ScopedStepMemory use_memory(&memory_);
  // What is left of ATen on the CPU is small, and its own threads would take the pool's cores.
  if (at::get_num_threads() != 1) at::set_num_threads(1);
  result->rows.resize(plan.rows.size());
  for (RowResult& row : result->rows) {
    row.token = RowResult::kNoToken;
    row.top.clear();
  }
  scorer_.Begin(plan, result);
  pooler_.Begin(plan, result);
  try {
    at::Tensor logits;
    if (graphs_ != nullptr) logits = graphs_->Forward(plan, &batch_);
    if (!logits.defined()) {
      batch_.Fill(plan);
      logits = model_->Forward(batch_);
    }
    if (logits.defined()) {
      sampler_.SampleRows(logits, plan, batch_.sample_rows(), result);  // waits for the device
    } else {
      WaitFor(batch_.device());
    }
  } catch (const std::exception& error) {  // c10::Error, and bad_alloc
    return DeviceError("step failed", error);
  }
  return absl::OkStatus();
}

int64_t TorchRunner::num_device_allocations() const {
  const at::Device& device = batch_.device();
  if (device.is_cpu()) return 0;
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  return c10::getDeviceAllocator(device.type())->getDeviceStats(index).num_device_alloc;
}

}  // namespace berth
