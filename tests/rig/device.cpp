// What the card is: its properties, as far as PyTorch chooses by them, and the way to the driver's functions.
#include "calls.h"
#include "card.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <string>

namespace {

// Per multiprocessor, from "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide.
struct Capability {
  int number;  // 89 is compute capability 8.9
  int threads;
  int blocks;
  int shared_bytes;
  int shared_bytes_per_block;  // the most that a kernel can opt in to
};
constexpr int kib = 1024;
constexpr Capability capabilities[] = {
    {70, 2048, 32, 96 * kib, 96 * kib},    {75, 1024, 16, 64 * kib, 64 * kib},   {80, 2048, 32, 164 * kib, 163 * kib},
    {86, 1536, 16, 100 * kib, 99 * kib},   {89, 1536, 24, 100 * kib, 99 * kib},  {90, 2048, 32, 228 * kib, 227 * kib},
    {100, 2048, 32, 228 * kib, 227 * kib}, {120, 1536, 24, 100 * kib, 99 * kib},
};

const Capability &capability() {
  long long asked = rig::number("RIG_CC", 89);
  for (const Capability &row : capabilities)
    if (row.number == asked) return row;
  rig::refuse("RIG_CC: no compute capability " + std::to_string(asked));
}

int multiprocessors() { return static_cast<int>(rig::number("RIG_MULTIPROCESSORS", 24)); }

cudaDeviceProp properties() {
  const Capability &has = capability();
  cudaDeviceProp card = {};
  snprintf(card.name, sizeof card.name, "%s", rig::text("RIG_NAME", "Rig card").c_str());
  card.uuid.bytes[0] = 1;
  card.totalGlobalMem = rig::card_total();
  card.major = has.number / 10;
  card.minor = has.number % 10;
  card.multiProcessorCount = multiprocessors();
  card.maxThreadsPerMultiProcessor = has.threads;
  card.maxBlocksPerMultiProcessor = has.blocks;
  card.sharedMemPerMultiprocessor = has.shared_bytes;
  card.sharedMemPerBlockOptin = has.shared_bytes_per_block;
  card.sharedMemPerBlock = 48 * kib;
  card.warpSize = 32;
  card.maxThreadsPerBlock = 1024;
  card.maxThreadsDim[0] = card.maxThreadsDim[1] = 1024;
  card.maxThreadsDim[2] = 64;
  card.maxGridSize[0] = 2147483647;
  card.maxGridSize[1] = card.maxGridSize[2] = 65535;
  card.regsPerBlock = card.regsPerMultiprocessor = 65536;
  card.totalConstMem = 64 * kib;
  card.l2CacheSize = 24 * kib * kib;
  card.textureAlignment = 512;
  card.unifiedAddressing = 1;
  card.pciBusID = 1;
  return card;
}

int attribute(cudaDeviceAttr asked) {
  const Capability &has = capability();
  switch (asked) {
    case cudaDevAttrComputeCapabilityMajor: return has.number / 10;
    case cudaDevAttrComputeCapabilityMinor: return has.number % 10;
    case cudaDevAttrMultiProcessorCount: return multiprocessors();
    case cudaDevAttrMaxThreadsPerMultiProcessor: return has.threads;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return has.blocks;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return has.shared_bytes;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return has.shared_bytes_per_block;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 * kib;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    default: return 0;  // has no such feature
  }
}

int not_supported() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED of cuda.h

cudaError_t driver_function(const char *name, void **function) {
  static void *const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) rig::refuse("the stand-in for libcuda.so.1 is not on LD_LIBRARY_PATH");
  *function = dlsym(driver, name);
  if (*function == nullptr) *function = reinterpret_cast<void *>(&not_supported);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  BEGIN(driver);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  BEGIN(driver);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device != 0) return rig::report(cudaErrorInvalidDevice);
  BEGIN(context);  // since CUDA 12 this creates the context
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *card, int device) {
  BEGIN(driver);
  if (device != 0) return rig::report(cudaErrorInvalidDevice);
  *card = properties();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr asked, int) {
  BEGIN(driver);
  *value = attribute(asked);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int) {
  BEGIN(driver);
  snprintf(id, size, "0000:01:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
  BEGIN(driver);
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN(context);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  BEGIN(nothing);
  *version = CUDART_VERSION / 1000 * 1000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  BEGIN(nothing);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  BEGIN(nothing);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return driver_function(name, function);
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long,
                                    cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, 0, result);
}
#endif

cudaError_t cudaProfilerStart() {
  BEGIN(context);
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  BEGIN(context);
  return cudaSuccess;
}
}
