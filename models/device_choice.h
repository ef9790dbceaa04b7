// The device that a model runs on, as --device names it and as the machine has it. Plain data; no torch here.
#ifndef BERTH_MODELS_DEVICE_CHOICE_H_
#define BERTH_MODELS_DEVICE_CHOICE_H_

#include <cstdint>
#include <string>

namespace berth {

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

struct DeviceChoice {
  std::string device = "cpu";  // "cpu", "cuda"
  std::string gpu;             // what it is, for the log; "": the device is the CPU
  DeviceMemory memory;         // of the GPU, now
  // Why "auto" chose the CPU although the machine has NVIDIA's driver; "": it has none, or the choice was another.
  std::string gpu_refused;

  bool on_gpu() const { return device != "cpu"; }
};

}  // namespace berth

#endif  // BERTH_MODELS_DEVICE_CHOICE_H_
