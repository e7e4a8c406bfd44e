#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/machine.hpp"
#include "muonrt/nccl.h"
#include "muonrt/optimizer.h"
#include "muonrt/step.h"
#include "muonrt/tuning.h"

// An optimizer on one rank, for a program that uses the C ABI and its own streams.
namespace cuda_test {

constexpr int kRows = 8, kCols = 12, kNumel = 6;

/// Throws the last error message unless `status` is MUONRT_OK.
inline void ok(muonrt_status_t status) {
  if (status != MUONRT_OK) throw std::runtime_error(muonrt_get_last_error());
}

/// A matrix for Muon and a vector for AdamW in GPU memory, and a staged communicator of one rank.
/// The gradient of the vector is initially NaN. A step is therefore skipped unless the program
/// writes a new gradient first.
class AbiRig {
 public:
  explicit AbiRig(int device = 0) : memory(make_device(false, device)) {
    muonrt_comm_t* host = nullptr;
    ok(muonrt_comm_create_self(&host));
    const muonrt_status_t made = muonrt_comm_create_staged(&comm, host, device);
    muonrt_comm_destroy(host);
    ok(made);
    muonrt_optimizer_options_init(&options);
    muonrt_tuning_options_init(&tuning);
    muonrt_debug_options_init(&debug);
    options.tuning = &tuning;
    options.debug = &debug;
    options.device = MUONRT_DEVICE_CUDA;
    options.device_index = device;
    muonrt_group_init_muon(&groups[0]);
    muonrt_group_init_adamw(&groups[1]);
    for (int i = 0; i < 2; ++i) {
      muonrt_param_init(&params[i]);
      params[i].name = i == 0 ? "wide" : "bias";
      params[i].group = i;
      params[i].ndim = i == 0 ? 2 : 1;
      params[i].shape = i == 0 ? matrix_shape : vector_shape;
      params[i].dtype = MUONRT_DTYPE_F32;
    }
    std::vector<float> weights, gradient;
    for (int i = 0; i < kRows * kCols; ++i) {
      weights.push_back(value_at(1, i));
      gradient.push_back(value_at(2, i));
    }
    params[0].data = matrix = memory.put(weights);
    params[0].grad = memory.put(gradient);
    params[1].data = data = memory.put(std::vector<float>(kNumel, 1.0f));
    params[1].grad = grad = memory.put(std::vector<float>(kNumel, NAN));
  }
  ~AbiRig() {
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm);
  }
  AbiRig(const AbiRig&) = delete;
  AbiRig& operator=(const AbiRig&) = delete;

  muonrt_status_t create() {
    return muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2);
  }
  muonrt_status_t step(cudaStream_t stream) {
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 0.5;
    args.stream = stream;
    return muonrt_optimizer_step(nullptr, optimizer, &args);
  }
  std::vector<float> vector() { return memory.get(data, kNumel); }
  std::vector<float> whole() {
    std::vector<float> out = memory.get(matrix, kRows * kCols), more = vector();
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }

  Machine memory;
  muonrt_comm_t* comm = nullptr;
  muonrt_optimizer_t* optimizer = nullptr;
  muonrt_optimizer_options_t options;
  muonrt_tuning_options_t tuning;
  muonrt_debug_options_t debug;
  muonrt_group_t groups[2];
  muonrt_param_t params[2];
  int64_t matrix_shape[2] = {kRows, kCols}, vector_shape[1] = {kNumel};
  float *matrix = nullptr, *data = nullptr, *grad = nullptr;
};

}  // namespace cuda_test
