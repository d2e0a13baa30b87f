// Memory of the CUDA runtime: counted against the card, and backed by host pages that take nothing until written.
//
// Copies are made, so what was put on the card can be read back. Kernels do not run, so most other values are zero or
// left over. An 80 GiB card works on a small host: only what is copied or set takes host memory.
#include "calls.h"
#include "card.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace {

std::mutex busy;
std::map<uintptr_t, size_t> device_blocks;  // from address to bytes
std::map<uintptr_t, size_t> pinned_blocks;
// Where the next block would lie: addresses grow, as the simulated allocator takes them to. They settle which of two
// free blocks of one size PyTorch takes before 2.14. The first is far from all that Linux places by itself.
uintptr_t next_address = uintptr_t{1} << 44;

bool lies_in(const std::map<uintptr_t, size_t> &blocks, const void *pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = blocks.upper_bound(address);
  return after != blocks.begin() && address < std::prev(after)->first + std::prev(after)->second;
}

// Whole zero pages are given back to the host instead of written: zeroing a large tensor takes no host memory.
void fill(void *start, int value, size_t bytes) {
  auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), from = reinterpret_cast<uintptr_t>(start);
  uintptr_t first = (from + page - 1) / page * page, end = (from + bytes) / page * page;
  if (value != 0 || end <= first) {
    memset(start, value, bytes);
    return;
  }
  memset(start, 0, first - from);
  madvise(reinterpret_cast<void *>(first), end - first, MADV_DONTNEED);
  memset(reinterpret_cast<void *>(end), 0, from + bytes - end);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  BEGIN(context);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > static_cast<size_t>(rig::card_total())) return rig::report(cudaErrorMemoryAllocation);
  long long rounded = rig::in_granules(static_cast<long long>(bytes));
  if (!rig::take(rounded)) return rig::report(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> lock(busy);
  void *at = mmap(reinterpret_cast<void *>(next_address), rounded, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) rig::refuse("the host has no address space left for the card");
  next_address = reinterpret_cast<uintptr_t>(at) + rounded;
  device_blocks[reinterpret_cast<uintptr_t>(at)] = rounded;
  *pointer = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  BEGIN(arrival);
  if (pointer == nullptr) return cudaSuccess;
  std::lock_guard<std::mutex> lock(busy);
  auto block = device_blocks.find(reinterpret_cast<uintptr_t>(pointer));
  if (block == device_blocks.end()) return rig::report(cudaErrorInvalidValue);
  munmap(pointer, block->second);
  rig::give(static_cast<long long>(block->second));
  device_blocks.erase(block);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  BEGIN(context);
  *total = rig::card_total();
  *free = *total - rig::card_used();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
  BEGIN(context);
  if (posix_memalign(pointer, 4096, bytes) != 0) return rig::report(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> lock(busy);
  pinned_blocks[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer) {
  BEGIN(context);
  std::lock_guard<std::mutex> lock(busy);
  if (pinned_blocks.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) return rig::report(cudaErrorInvalidValue);
  free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
  BEGIN(context);
  std::lock_guard<std::mutex> lock(busy);
  bool added = pinned_blocks.emplace(reinterpret_cast<uintptr_t>(pointer), bytes).second;
  return added ? cudaSuccess : rig::report(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void *pointer) {
  BEGIN(context);
  std::lock_guard<std::mutex> lock(busy);
  bool removed = pinned_blocks.erase(reinterpret_cast<uintptr_t>(pointer)) > 0;
  return removed ? cudaSuccess : rig::report(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
  BEGIN(driver);
  std::lock_guard<std::mutex> lock(busy);
  *attributes = {};
  attributes->devicePointer = attributes->hostPointer = const_cast<void *>(pointer);
  if (lies_in(device_blocks, pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->hostPointer = nullptr;
  } else if (lies_in(pinned_blocks, pointer)) {
    attributes->type = cudaMemoryTypeHost;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->devicePointer = nullptr;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  BEGIN(arrival);
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  BEGIN(context);
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t) {
  BEGIN(context);
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t) {
  BEGIN(context);
  for (size_t row = 0; row < height; row++)
    memmove(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width);
  return cudaSuccess;
}

// Constants of kernels, and no kernel reads them.
cudaError_t cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, cudaMemcpyKind) {
  BEGIN(context);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *start, int value, size_t bytes) {
  BEGIN(context);
  fill(start, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t) {
  BEGIN(context);
  fill(start, value, bytes);
  return cudaSuccess;
}
}
