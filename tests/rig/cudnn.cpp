// cuDNN: handles and, through its backend interface, convolutions that are planned and not computed.
//
// RIG_CUDNN_WORKSPACE lists the bytes of workspace, one plan for each number, in the order in which the heuristic
// offers them: "268435456,0" is a fast plan that needs 256 MiB and one that needs none. PyTorch takes the first that
// runs. Descriptors of tensors, filters and dropout are left to the real library: they are kept on the host.
#include "calls.h"
#include "card.h"

#include <algorithm>
#include <cstdlib>
#include <cudnn.h>
#include <cudnn_backend.h>
#include <string>
#include <vector>

#define BEGIN_CUDNN                                                                                                   \
  if (int planned = rig::planned_failure(__func__)) return static_cast<cudnnStatus_t>(planned)

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};

// Engine configurations know their place in the heuristic's list; plans take it from theirs.
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  size_t place = 0;
};

std::vector<int64_t> read_workspaces() {
  std::vector<int64_t> found;
  std::string all = rig::text("RIG_CUDNN_WORKSPACE", "0") + ",";
  for (size_t at = 0; at < all.size(); at = all.find(',', at) + 1)
    found.push_back(atoll(all.substr(at, all.find(',', at) - at).c_str()));
  return found;
}

const std::vector<int64_t> &workspaces() {
  static const std::vector<int64_t> once = read_workspaces();
  return once;
}

Descriptor *own(cudnnBackendDescriptor_t descriptor) { return reinterpret_cast<Descriptor *>(descriptor); }

int64_t offer_engines(int64_t room, void *elements) {
  auto offered = static_cast<int64_t>(workspaces().size());
  auto *configurations = static_cast<cudnnBackendDescriptor_t *>(elements);
  for (int64_t i = 0; elements != nullptr && i < std::min(room, offered); i++) own(configurations[i])->place = i;
  return elements == nullptr ? offered : std::min(room, offered);
}

template <typename Number = int64_t>
int64_t one_number(Number value, void *elements) {
  if (elements != nullptr) *static_cast<Number *>(elements) = value;
  return 1;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  BEGIN_CUDNN;
  if (rig::begin("", rig::Need::context) != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  BEGIN_CUDNN;
  delete reinterpret_cast<Handle *>(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  BEGIN_CUDNN;
  reinterpret_cast<Handle *>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  BEGIN_CUDNN;
  *stream = reinterpret_cast<Handle *>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
  BEGIN_CUDNN;
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new Descriptor{type});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  BEGIN_CUDNN;
  delete own(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t, const void *elements) {
  BEGIN_CUDNN;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
    own(descriptor)->place = own(*static_cast<const cudnnBackendDescriptor_t *>(elements))->place;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t room, int64_t *count, void *elements) {
  BEGIN_CUDNN;
  int64_t found = 0;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: found = offer_engines(room, elements); break;
#if CUDNN_VERSION >= 90200
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: found = one_number<int32_t>(0, elements); break;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
#endif
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      found = one_number(workspaces().at(own(descriptor)->place), elements);
      break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: found = one_number(1, elements); break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: found = one_number(0, elements); break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: found = 1; break;
    default: break;  // notes, knobs and the like: none
  }
  if (count != nullptr) *count = found;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) {
  BEGIN_CUDNN;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  BEGIN_CUDNN;
  return CUDNN_STATUS_SUCCESS;
}

// Batch norm needs no workspace and no reserve here. (On a card the reserve is often nothing too.)

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t *bytes) {
  BEGIN_CUDNN;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t *bytes) {
  BEGIN_CUDNN;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                   cudnnBatchNormOps_t, const cudnnActivationDescriptor_t,
                                                                   const cudnnTensorDescriptor_t, size_t *bytes) {
  BEGIN_CUDNN;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
}
