// How every call to the stand-in runtime begins, and how a planned failure is read.
#pragma once

#include <cuda_runtime_api.h>

namespace rig {

// What a call needs. Each kind needs what the one before it needs.
enum class Need {
  nothing,  // answered without the driver
  driver,   // initialises the driver in this process; a later fork makes the child unfit for CUDA
  context,  // creates the process's context, which takes its bytes
  arrival,  // waits for queued work, so it is where an error of a kernel arrives
};

// Returns the error that a call to `function` ends with before it does anything, or success.
cudaError_t begin(const char *function, Need need);

// The same for a kernel launch: a fault of the kernel itself arrives later, at the next call that waits.
cudaError_t begin_launch();

// Remembers an error for cudaGetLastError and returns it.
cudaError_t report(cudaError_t error);

bool context_is_active();

// The code that RIG_FAIL plans for this call, or 0. Rules are separated by commas, each
//     FUNCTION=CODE[@CALLS][<BYTES]
// and apply from call number CALLS + 1 on, and while fewer than BYTES are free on the card.
int planned_failure(const char *function);

}  // namespace rig

// For the generated C functions (stubs.py).
extern "C" int rig_planned_failure(const char *function);

#define BEGIN(need)                                                                                                   \
  if (cudaError_t problem = rig::begin(__func__, rig::Need::need)) return problem
