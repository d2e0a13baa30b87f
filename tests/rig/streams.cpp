// Streams, events and kernel launches. Every stream is empty at all times: work is done when it is asked for, or never.
#include "calls.h"
#include "card.h"

#include <atomic>
#include <chrono>

namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point recorded = Clock::now();
};

// A stream is a number: nothing is behind it. Numbers start above cudaStreamLegacy and cudaStreamPerThread.
cudaStream_t new_stream() {
  static std::atomic<uintptr_t> next{0x1000};
  return reinterpret_cast<cudaStream_t>(next += 16);
}

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local Launch pushed;

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  BEGIN(context);
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  BEGIN(context);
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  BEGIN(context);
  *stream = new_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  BEGIN(context);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int *priority) {
  BEGIN(context);
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
  BEGIN(arrival);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  BEGIN(arrival);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  BEGIN(arrival);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  BEGIN(context);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *argument, unsigned) {
  BEGIN(context);
  callback(stream, cudaSuccess, argument);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void *argument) {
  BEGIN(context);
  function(argument);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  BEGIN(nothing);
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// The out parameters after the status differ between CUDA 12 and 13 and are not read when nothing is captured.
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus *status, unsigned long long *, cudaGraph_t *,
                                     const cudaGraphNode_t **, const cudaGraphEdgeData **, size_t *) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus *status, unsigned long long *,
                                        cudaGraph_t *, const cudaGraphNode_t **, size_t *) {
#endif
  BEGIN(nothing);
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) {
  BEGIN(nothing);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  BEGIN(context);
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  BEGIN(context);
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  BEGIN(context);
  delete reinterpret_cast<Event *>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  BEGIN(context);
  reinterpret_cast<Event *>(event)->recorded = Clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned) {
  BEGIN(context);
  reinterpret_cast<Event *>(event)->recorded = Clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  BEGIN(arrival);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  BEGIN(arrival);
  return cudaSuccess;
}

// The host's time between the two calls: kernels take none.
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  BEGIN(arrival);
  auto between = reinterpret_cast<Event *>(end)->recorded - reinterpret_cast<Event *>(start)->recorded;
  *milliseconds = std::chrono::duration<float, std::milli>(between).count();
  return cudaSuccess;
}

// Launching, as nvcc's host code does it. __cudaLaunchKernel and __cudaGetKernel came with CUDA 13.

void **__cudaRegisterFatBinary(void *) {
  static void *handle;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
char __cudaInitModule(void **) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  pushed = {grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  *static_cast<cudaStream_t *>(stream) = pushed.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t) { return rig::begin_launch(); }

cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { return rig::begin_launch(); }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) { return rig::begin_launch(); }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  BEGIN(context);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = 48 * 1024;
  // Memory-efficient attention refuses a kernel that is not of the card's architecture, cub one that was not built:
  // on a card between two of these the older one's code runs.
  const int card = static_cast<int>(rig::number("RIG_CC", 89));
  attributes->binaryVersion = card;
  for (const int built : {50, 60, 70, 75, 80, 86, 90, 100, 120})
    if (built <= card) attributes->ptxVersion = built;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
  BEGIN(context);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) {
  BEGIN(context);
  *blocks = 8;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  BEGIN(context);
  *address = const_cast<void *>(symbol);
  return cudaSuccess;
}
}
