// libcuda.so.1, as far as PyTorch's libraries and loaders ask: is there a card, is there a context. stubs.py adds the
// rest of what they import, which answers "not supported".
#include <cuda.h>

// Of the preloaded runtime. Weak: a process without it has no context.
extern "C" int rig_context_is_active() __attribute__((weak));

static bool context_is_active() { return rig_context_is_active != nullptr && rig_context_is_active() != 0; }

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION / 1000 * 1000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}

// No optional feature: neither virtual memory management nor fabric handles nor multicast.
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  *flags = 0;
  *active = context_is_active();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(1);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = reinterpret_cast<CUcontext>(context_is_active() ? 1 : 0);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_NOT_SUPPORTED ? "operation not supported" : "unknown error";
  return CUDA_SUCCESS;
}
}
