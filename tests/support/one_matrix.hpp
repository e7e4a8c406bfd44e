#pragma once

#include "muonrt/optimizer.h"

/// An optimizer for one replicated 2 x 3 matrix, created through the C ABI.
class OneMatrix {
 public:
  OneMatrix() = default;
  ~OneMatrix() { destroy(); }
  OneMatrix(const OneMatrix&) = delete;
  OneMatrix& operator=(const OneMatrix&) = delete;

  muonrt_status_t create(muonrt_comm_t* comm, const muonrt_optimizer_options_t* options = nullptr,
                         enum muonrt_role role = MUONRT_ROLE_MUON) {
    muonrt_group_t group;
    if (role == MUONRT_ROLE_MUON) {
      muonrt_group_init_muon(&group);
    } else {
      muonrt_group_init_adamw(&group);
    }
    muonrt_param_t param;
    muonrt_param_init(&param);
    param.name = "w";
    param.ndim = 2;
    param.shape = shape_;
    param.data = data;
    param.grad = grad;
    return muonrt_optimizer_create(&optimizer, comm, options, &group, 1, &param, 1);
  }
  muonrt_status_t step() {
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 0.1;
    return muonrt_optimizer_step(nullptr, optimizer, &args);
  }
  void destroy() {
    muonrt_optimizer_destroy(optimizer);
    optimizer = nullptr;
  }

  muonrt_optimizer_t* optimizer = nullptr;
  float data[6] = {1, 2, 3, 4, 5, 6}, grad[6] = {1, 0, 1, 0, 1, 1};

 private:
  const int64_t shape_[2] = {2, 3};
};
