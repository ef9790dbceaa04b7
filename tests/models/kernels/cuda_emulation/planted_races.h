// Kernels with one race each, and their twins without it. They show what the race detector of the emulation finds.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_PLANTED_RACES_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_PLANTED_RACES_H_

#include <vector>

namespace cuda_emulation {

struct PlantedRace {
  const char* name;
  void (*run)();          // ends the program
  void (*run_correct)();  // the twin
};
std::vector<PlantedRace> PlantedRaces();

}  // namespace cuda_emulation

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_PLANTED_RACES_H_
