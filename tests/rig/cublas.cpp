// cuBLAS: handles, which take memory of the card, and what PyTorch asks about them. Products are not computed
// (stubs.py writes those functions).
//
// The signatures are kept loose, without cublas_v2.h: that header needs nv/target, which is in none of torch's wheels.
#include "calls.h"
#include "card.h"

namespace {

enum Status { success = 0, not_initialized = 1 };  // cublasStatus_t in cublas_api.h

struct Handle {
  long long bytes;
  void *stream = nullptr;
};

// A real handle that finds no memory says "not initialized" and does not mention memory.
Status create(const char *function, void **handle) {
  if (int planned = rig::planned_failure(function)) return static_cast<Status>(planned);
  if (rig::begin("", rig::Need::context) != cudaSuccess) return not_initialized;
  long long bytes = rig::in_granules(rig::number("RIG_CUBLAS_BYTES", 0));
  if (!rig::take(bytes)) return not_initialized;
  *handle = new Handle{bytes};
  return success;
}

Status destroy(const char *function, void *handle) {
  if (int planned = rig::planned_failure(function)) return static_cast<Status>(planned);
  rig::give(static_cast<Handle *>(handle)->bytes);
  delete static_cast<Handle *>(handle);
  return success;
}

}  // namespace

extern "C" {

int cublasCreate_v2(void **handle) { return create(__func__, handle); }
int cublasLtCreate(void **handle) { return create(__func__, handle); }
int cublasDestroy_v2(void *handle) { return destroy(__func__, handle); }
int cublasLtDestroy(void *handle) { return destroy(__func__, handle); }

int cublasSetStream_v2(void *handle, void *stream) {
  static_cast<Handle *>(handle)->stream = stream;
  return rig::planned_failure(__func__);
}

int cublasGetStream_v2(void *handle, void **stream) {
  *stream = static_cast<Handle *>(handle)->stream;
  return rig::planned_failure(__func__);
}

int cublasGetMathMode(void *, int *mode) {
  *mode = 0;  // CUBLAS_DEFAULT_MATH
  return rig::planned_failure(__func__);
}

int cublasGetPointerMode_v2(void *, int *mode) {
  *mode = 0;  // CUBLAS_POINTER_MODE_HOST
  return rig::planned_failure(__func__);
}

int cublasGetVersion_v2(void *, int *version) {
  *version = CUDART_VERSION * 10;
  return rig::planned_failure(__func__);
}

size_t cublasLtGetVersion() { return CUDART_VERSION * 10; }

// One algorithm for every product; the caller's zeroed result says that it needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *, int *found) {
  *found = 1;
  return rig::planned_failure(__func__);
}
}
