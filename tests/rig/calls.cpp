// The state of a process on the card: driver, context, errors; and the failures that a test planned.
#include "calls.h"

#include "card.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <mutex>
#include <set>
#include <string>
#include <sys/types.h>
#include <unistd.h>

namespace rig {
namespace {

std::atomic<pid_t> driver_owner{0};
std::atomic<bool> context_made{false};
std::atomic<int> fault_on_its_way{0};  // of a kernel that was launched and not waited for
std::atomic<int> fault{0};             // the context is lost; every call that needs it says so
thread_local cudaError_t last_error = cudaSuccess;

// Errors after which "the only way to continue is to end the process" (cudaError_t in driver_types.h).
bool loses_the_context(int code) {
  static const std::set<int> codes = {
      cudaErrorECCUncorrectable,   cudaErrorIllegalAddress,    cudaErrorLaunchTimeout,       cudaErrorAssert,
      cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
      cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,         cudaErrorLaunchFailure};
  return codes.count(code) > 0;
}

// CUDA_VISIBLE_DEVICES hides the card unless it names it first, as for a real runtime with one card.
bool is_visible() {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr || strcmp(visible, "0") == 0 || strncmp(visible, "0,", 2) == 0 ||
         strncmp(visible, "GPU-01000000", 12) == 0;
}

cudaError_t need_driver() {
  pid_t me = getpid(), owner = 0;
  if (!driver_owner.compare_exchange_strong(owner, me) && owner != me) return cudaErrorInitializationError;
  return is_visible() ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t need_context() {
  static std::mutex making;
  if (context_made) return cudaSuccess;
  std::lock_guard<std::mutex> lock(making);
  if (context_made) return cudaSuccess;
  if (!take(number("RIG_CONTEXT_BYTES", 0))) return cudaErrorMemoryAllocation;
  context_made = true;
  return cudaSuccess;
}

// Whether this library has the function and the function asks for planned failures. Those that do not: the compiler's
// own (__cuda...), two that read the last error, one that returns a number, and a launch that goes by another name.
bool can_fail(const std::string &function) {
  static const std::set<std::string> never = {"cudaGetLastError", "cudaPeekAtLastError", "cublasLtGetVersion",
                                              "cudaLaunchKernelExC"};
  Dl_info here = {}, there = {};
  void *target = dlsym(RTLD_DEFAULT, function.c_str());
  return target != nullptr && dladdr(target, &there) != 0 &&
         dladdr(reinterpret_cast<void *>(&planned_failure), &here) != 0 && here.dli_fbase == there.dli_fbase &&
         never.count(function) == 0 && function.rfind("cu", 0) == 0;
}

struct Rule {
  std::string function;
  int code = 0;
  long long after_calls = 0;
  long long free_below = -1;
  std::atomic<long long> calls{0};

  explicit Rule(const std::string &written) {
    size_t equals = written.find('=');
    if (equals == std::string::npos) refuse("RIG_FAIL: no code in " + written);
    function = written.substr(0, equals);
    char *rest = nullptr;
    code = static_cast<int>(strtol(written.c_str() + equals + 1, &rest, 10));
    if (*rest == '@') after_calls = strtoll(rest + 1, &rest, 10);
    if (*rest == '<') free_below = strtoll(rest + 1, &rest, 10);
    if (*rest != '\0' || code == 0) refuse("RIG_FAIL: cannot read " + written);
    if (!can_fail(function)) refuse("RIG_FAIL: no function here that can fail is called " + function);
  }
};

std::deque<Rule> read_rules() {
  std::deque<Rule> rules;
  std::string all = text("RIG_FAIL", "");
  for (size_t at = 0; at < all.size();) {
    size_t comma = std::min(all.find(',', at), all.size());
    rules.emplace_back(all.substr(at, comma - at));
    at = comma + 1;
  }
  return rules;
}

}  // namespace

int planned_failure(const char *function) {
  static std::deque<Rule> rules = read_rules();
  for (Rule &rule : rules)
    if (rule.function == function && rule.calls++ >= rule.after_calls &&
        (rule.free_below < 0 || card_total() - card_used() < rule.free_below))
      return rule.code;
  return 0;
}

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t begin(const char *function, Need need) {
  if (need == Need::arrival && fault_on_its_way != 0) fault = fault_on_its_way.load();
  if (need >= Need::driver)
    if (cudaError_t problem = need_driver()) return report(problem);
  if (need >= Need::context) {
    if (fault != 0) return report(static_cast<cudaError_t>(fault.load()));
    if (cudaError_t problem = need_context()) return report(problem);
  }
  int planned = planned_failure(function);
  if (loses_the_context(planned)) fault = planned;
  return report(static_cast<cudaError_t>(planned));
}

cudaError_t begin_launch() {
  if (cudaError_t problem = begin("", Need::context)) return problem;
  int planned = planned_failure("cudaLaunchKernel");
  if (!loses_the_context(planned)) return report(static_cast<cudaError_t>(planned));
  fault_on_its_way = planned;
  return text("CUDA_LAUNCH_BLOCKING", "0") == "1" ? begin("", Need::arrival) : cudaSuccess;
}

bool context_is_active() { return context_made && driver_owner == getpid(); }

}  // namespace rig

extern "C" {

int rig_planned_failure(const char *function) { return rig::planned_failure(function); }

int rig_context_is_active() { return rig::context_is_active(); }

cudaError_t cudaPeekAtLastError() { return rig::last_error; }

cudaError_t cudaGetLastError() {
  cudaError_t error = rig::last_error;
  rig::last_error = cudaSuccess;
  return error;
}
}
