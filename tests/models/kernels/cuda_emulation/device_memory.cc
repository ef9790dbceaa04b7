#include "tests/models/kernels/cuda_emulation/device_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <vector>

namespace cuda_emulation {
namespace {

struct Pages {
  void* begin;
  size_t size_bytes;
};
// Never destroyed: a test's last tensors may go after everything else.
std::vector<Pages>& AllPages() {
  static auto* const pages = new std::vector<Pages>();
  return *pages;
}
int accesses = 0;

void Protect(const Pages& pages, int protection) {
  if (mprotect(pages.begin, pages.size_bytes, protection) == 0) return;
  perror("CUDA emulation: mprotect");
  abort();
}
void ProtectAll(int protection) {
  for (const Pages& pages : AllPages()) Protect(pages, protection);
}

}  // namespace

DeviceMemory::DeviceMemory(void* pages, size_t size_bytes) : begin_(pages) {
  AllPages().push_back({pages, size_bytes});
  if (accesses == 0) Protect(AllPages().back(), PROT_NONE);
}

DeviceMemory::~DeviceMemory() {
  std::erase_if(AllPages(), [this](const Pages& pages) {
    if (pages.begin != begin_) return false;
    Protect(pages, PROT_READ | PROT_WRITE);
    return true;
  });
}

void BeginDeviceAccess() {
  if (accesses++ == 0) ProtectAll(PROT_READ | PROT_WRITE);
}
void EndDeviceAccess() {
  if (--accesses == 0) ProtectAll(PROT_NONE);
}

}  // namespace cuda_emulation
