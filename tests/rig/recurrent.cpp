// cuDNN's recurrent networks: what PyTorch asks of them and where their weights lie. Nothing is computed.
//
// The weight space is exact: the matrices of every pseudo-layer (a layer in one direction), then their biases, two a
// gate whether or not the model has any, because PyTorch asks for CUDNN_RNN_DOUBLE_BIAS always. The sizes of workspace
// and reserve are cuDNN's secret; here they are the estimates of sweeper/worker/tracing/recurrent.py, so that what
// PyTorch does with them can be compared.
#include "calls.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <numeric>

#define BEGIN_CUDNN                                                                                                   \
  if (int planned = rig::planned_failure(__func__)) return static_cast<cudnnStatus_t>(planned)

namespace {

struct Network {
  cudnnRNNMode_t cell;
  cudnnDataType_t type;
  int64_t directions, input, hidden, projection, layers;
  bool dropout;

  int64_t gates() const { return cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1; }
  bool projects() const { return projection != hidden; }
  int64_t columns(int64_t pseudo_layer) const {
    return pseudo_layer < directions ? input : projection * directions;
  }
  int64_t matrices(int64_t pseudo_layer) const {
    return gates() * hidden * (columns(pseudo_layer) + projection) + (projects() ? projection * hidden : 0);
  }
  int64_t matrices_before(int64_t pseudo_layer) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < pseudo_layer; i++) sum += matrices(i);
    return sum;
  }
  int64_t pseudo_layers() const { return layers * directions; }
  int64_t weights() const { return matrices_before(pseudo_layers()) + pseudo_layers() * 2 * gates() * hidden; }
};

struct Sequences {
  int64_t tokens;  // in all sequences of the batch together
};

struct Dropout {
  float probability;
};

size_t size_of(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

const Network &own(cudnnRNNDescriptor_t descriptor) { return *reinterpret_cast<Network *>(descriptor); }

// Descriptors of tensors stay with the real library, which keeps them on the host.
cudnnStatus_t describe(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type, int64_t rows, int64_t columns) {
  static void *const library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  static auto *const set =
      reinterpret_cast<decltype(&cudnnSetTensorNdDescriptor)>(dlsym(library, "cudnnSetTensorNdDescriptor"));
  int sizes[] = {1, static_cast<int>(rows), static_cast<int>(columns)};
  int strides[] = {sizes[1] * sizes[2], sizes[2], 1};
  return set(descriptor, type, 3, sizes, strides);
}

template <typename Kept, typename Descriptor>
cudnnStatus_t create(Descriptor *descriptor) {
  *descriptor = reinterpret_cast<Descriptor>(new Kept{});
  return CUDNN_STATUS_SUCCESS;
}

template <typename Kept, typename Descriptor>
cudnnStatus_t destroy(Descriptor descriptor) {
  delete reinterpret_cast<Kept *>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *descriptor) { return create<Network>(descriptor); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t descriptor) { return destroy<Network>(descriptor); }
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *data) { return create<Sequences>(data); }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data) { return destroy<Sequences>(data); }
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *dropout) { return create<Dropout>(dropout); }
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout) { return destroy<Dropout>(dropout); }

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t, cudnnRNNMode_t cell,
                                       cudnnRNNBiasMode_t, cudnnDirectionMode_t direction, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t, int32_t input,
                                       int32_t hidden, int32_t projection, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t) {
  BEGIN_CUDNN;
  bool drops = reinterpret_cast<Dropout *>(dropout)->probability > 0;
  *reinterpret_cast<Network *>(descriptor) = {
      cell, type, direction == CUDNN_BIDIRECTIONAL ? 2 : 1, input, hidden, projection, layers, drops};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t, cudnnRNNDataLayout_t, int,
                                        int batch, int, const int lengths[], void *) {
  BEGIN_CUDNN;
  reinterpret_cast<Sequences *>(data)->tokens = std::accumulate(lengths, lengths + batch, int64_t{0});
  return CUDNN_STATUS_SUCCESS;
}

// What RNG states take on a card depends on its multiprocessors; PyTorch asks once and keeps them.
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t *bytes) {
  BEGIN_CUDNN;
  *bytes = size_t{2} << 20;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t, float probability, void *,
                                        size_t, unsigned long long) {
  BEGIN_CUDNN;
  reinterpret_cast<Dropout *>(dropout)->probability = probability;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t, float probability, void *,
                                            size_t, unsigned long long) {
  BEGIN_CUDNN;
  reinterpret_cast<Dropout *>(dropout)->probability = probability;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, size_t *bytes) {
  BEGIN_CUDNN;
  *bytes = own(descriptor).weights() * size_of(own(descriptor).type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, int32_t pseudo_layer, size_t,
                                      const void *space, int32_t id, cudnnTensorDescriptor_t matrix_descriptor,
                                      void **matrix, cudnnTensorDescriptor_t bias_descriptor, void **bias) {
  BEGIN_CUDNN;
  const Network &network = own(descriptor);
  int64_t gates = network.gates(), hidden = network.hidden, columns = network.columns(pseudo_layer);
  bool recurrent = id >= gates, projecting = id == 2 * gates;
  auto at = [&](int64_t element) {
    return const_cast<char *>(static_cast<const char *>(space)) + element * size_of(network.type);
  };
  if (matrix != nullptr) {
    int64_t first = network.matrices_before(pseudo_layer);
    if (projecting) {
      *matrix = at(first + gates * hidden * (columns + network.projection));
    } else if (recurrent) {
      *matrix = at(first + gates * hidden * columns + (id - gates) * hidden * network.projection);
    } else {
      *matrix = at(first + id * hidden * columns);
    }
    int64_t rows = projecting ? network.projection : hidden;
    int64_t width = projecting ? hidden : recurrent ? network.projection : columns;
    if (cudnnStatus_t problem = describe(matrix_descriptor, network.type, rows, width)) return problem;
  }
  if (bias != nullptr) {
    *bias = at(network.matrices_before(network.pseudo_layers()) + (pseudo_layer * 2 * gates + id) * hidden);
    if (cudnnStatus_t problem = describe(bias_descriptor, network.type, hidden, 1)) return problem;
  }
  return CUDNN_STATUS_SUCCESS;
}

// The estimates of sweeper/worker/tracing/recurrent.py, which says what they rest on.
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t data, size_t *workspace, size_t *reserve) {
  BEGIN_CUDNN;
  const Network &network = own(descriptor);
  int64_t tokens = reinterpret_cast<Sequences *>(data)->tokens;
  int64_t each = network.directions * tokens * network.hidden * size_of(network.type);
  int64_t kept = network.cell == CUDNN_LSTM ? 6 : network.cell == CUDNN_GRU ? 4 : 1;
  *workspace = each * network.gates();
  if (reserve != nullptr) {
    int64_t masks = network.dropout ? (network.layers - 1) * network.directions * tokens * network.hidden : 0;
    *reserve = mode == CUDNN_FWD_MODE_TRAINING ? each * kept * network.layers + masks : 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, const int32_t *,
                              cudnnRNNDataDescriptor_t, const void *, cudnnRNNDataDescriptor_t, void *,
                              cudnnTensorDescriptor_t, const void *, void *, cudnnTensorDescriptor_t, const void *,
                              void *, size_t, const void *, size_t, void *, size_t, void *) {
  BEGIN_CUDNN;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t, cudnnRNNDescriptor_t, const int32_t *, cudnnRNNDataDescriptor_t,
                                      const void *, const void *, cudnnRNNDataDescriptor_t, void *,
                                      cudnnTensorDescriptor_t, const void *, const void *, void *,
                                      cudnnTensorDescriptor_t, const void *, const void *, void *, size_t,
                                      const void *, size_t, void *, size_t, void *) {
  BEGIN_CUDNN;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t, cudnnRNNDescriptor_t, cudnnWgradMode_t, const int32_t *,
                                         cudnnRNNDataDescriptor_t, const void *, cudnnTensorDescriptor_t, const void *,
                                         cudnnRNNDataDescriptor_t, const void *, size_t, void *, size_t, void *,
                                         size_t, void *) {
  BEGIN_CUDNN;
  return CUDNN_STATUS_SUCCESS;
}
}
