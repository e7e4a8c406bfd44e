// Steps through the C ABI whose gradients are still being written on a stream of the caller's.

#include <catch2/catch.hpp>

#include "control.hpp"
#include "cuda/machine.hpp"
#include "muonrt/nccl.h"
#include "muonrt/optimizer.h"

using namespace cuda_test;

namespace {

constexpr int64_t kNumel = 6;

/// An optimizer of one vector, all in memory of the GPU.
struct Rig {
  Rig() {
    muonrt_comm_t* host = nullptr;
    ok(muonrt_comm_create_self(&host));
    const muonrt_status_t made = muonrt_comm_create_staged(&comm, host, 0);
    muonrt_comm_destroy(host);
    ok(made);
    muonrt_optimizer_options_t options;
    muonrt_optimizer_options_init(&options);
    options.device = MUONRT_DEVICE_CUDA;
    options.portable_gemm = 1;
    muonrt_group_t group;
    muonrt_group_init(&group, MUONRT_ROLE_ADAMW);
    const int64_t shape[] = {kNumel};
    muonrt_param_t param;
    muonrt_param_init(&param);
    param.name = "bias";
    param.ndim = 1;
    param.shape = shape;
    param.dtype = MUONRT_DTYPE_F32;
    param.data = data = memory.put(std::vector<float>(kNumel, 1.0f));
    param.grad = grad = memory.put(std::vector<float>(kNumel, NAN));
    ok(muonrt_optimizer_create(&optimizer, comm, &options, &group, 1, &param, 1));
  }
  ~Rig() {
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm);
  }
  static void ok(muonrt_status_t status) {
    if (status != MUONRT_OK) throw std::runtime_error(muonrt_last_error());
  }
  muonrt_status_t step(cudaStream_t stream) {
    muonrt_step_t args;
    muonrt_step_init(&args);
    args.lr = 0.5;
    args.stream = stream;
    return muonrt_optimizer_step(optimizer, &args, nullptr);
  }

  Machine memory{make_device(true)};
  muonrt_comm_t* comm = nullptr;
  muonrt_optimizer_t* optimizer = nullptr;
  float *data = nullptr, *grad = nullptr;
};

}  // namespace

TEST_CASE("caller's stream: a step reads the gradients that it has yet to write", "[emulated]") {
  Rig rig;
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithPriority(&stream, 0, 0);
  float* const fresh = rig.memory.put(std::vector<float>(kNumel, 2.0f));
  cudaMemcpyAsync(rig.grad, fresh, kNumel * sizeof(float), cudaMemcpyDefault, stream);
  REQUIRE(emulator::pending() > 0);
  // Without the wait the gradient would be NaN, and the step skipped.
  CHECK(rig.step(stream) == MUONRT_OK);
  for (const float x : rig.memory.get(rig.data, kNumel)) CHECK(x < 0.6f);
  cudaStreamDestroy(stream);
}

TEST_CASE("caller's stream: one under capture is refused by name, and nothing is committed",
          "[emulated]") {
  Rig rig;
  const std::vector<float> before = rig.memory.get(rig.data, kNumel);
  emulator::pretend_capture(true);
  const muonrt_status_t status = rig.step(nullptr);
  emulator::pretend_capture(false);
  CHECK(status == MUONRT_ERROR_NOT_SUPPORTED);
  CHECK(std::string(muonrt_last_error()).find("captured into a graph") != std::string::npos);
  CHECK(rig.memory.get(rig.data, kNumel) == before);
}
