// Tests two GPUs in one process. The cases are skipped if there is only one GPU; the emulator has
// two.

#include <catch2/catch.hpp>

#include "backend/cuda_comm.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/device/abi_rig.hpp"
#include "cuda/nccl/worlds.hpp"
#include "support/bits_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

bool has_two() {
  if (cuda_device_count() >= 2) return true;
  leave_out("this machine has one GPU");
  return false;
}

int current() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

/// Checks that the current device after every call is the device that the caller has selected.
class Caller {
 public:
  explicit Caller(int device) : device_(device) { cudaSetDevice(device_); }
  ~Caller() { cudaSetDevice(0); }
  template <class Work>
  auto call(const char* what, const Work& work) {
    INFO(what);
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      CHECK(current() == device_);
    } else {
      auto out = work();
      CHECK(current() == device_);
      return out;
    }
  }

 private:
  int device_;
};

std::unique_ptr<Comm> staged_on(std::unique_ptr<Transport> transport, int device) {
  return make_staged_comm(make_bootstrap(std::move(transport)), device);
}

bool says(const std::string& words) {
  return std::string(muonrt_get_last_error()).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "two GPUs: one thread steps an optimizer on each, the bits are equal, and its current "
    "device stays",
    "[cuda]") {
  if (!has_two()) return;
  std::vector<std::vector<float>> results;
  for (const int mine : {0, 1}) {
    Caller caller(mine);
    std::vector<std::unique_ptr<AbiRig>> rigs;
    for (const int device : {0, 1}) {
      rigs.push_back(caller.call("make_device and communicator",
                                 [&] { return std::make_unique<AbiRig>(device); }));
      caller.call("create", [&] { ok(rigs.back()->create()); });
    }
    std::vector<float*> fresh;
    for (const auto& rig : rigs) fresh.push_back(rig->memory.put(std::vector<float>(kNumel, 2.0f)));
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < 2; ++i) {
        caller.call("set_grad",
                    [&] { ok(muonrt_optimizer_set_grad(rigs[i]->optimizer, 1, fresh[i])); });
        // The handle of the default stream refers to the device of the optimizer.
        const cudaStream_t stream = step == 0 ? cudaStreamLegacy : nullptr;
        CHECK(caller.call("step", [&] { return rigs[i]->step(stream); }) == MUONRT_OK);
      }
    }
    for (auto& rig : rigs) {
      int64_t steps = 0;
      caller.call("get_step", [&] { ok(muonrt_optimizer_get_step(&steps, rig->optimizer)); });
      CHECK(steps == 3);
      results.push_back(rig->whole());
      caller.call("destroy", [&] { rig.reset(); });
    }
  }
  for (const auto& one : results) CHECK(one == results[0]);
  CHECK(results[0][kRows * kCols] != 1.0f);
}

TEST_CASE("two GPUs: ranks on both of them are bitwise identical to one rank on one", "[cuda]") {
  if (!has_two()) return;
  bits::Factors one;
  const world::Tensors alone = run_world(
      bits::make(one, false, 2), [](auto transport) { return staged_on(std::move(transport), 0); });
  // Mesh 1 has 2 ranks, and mesh 6 has 2 x 2 ranks in a different order.
  for (const size_t mesh : {size_t{1}, size_t{6}}) {
    bits::Factors f;
    f.mesh = mesh;
    f.scheme = mesh == 1 ? 0 : 1;
    f.commit = mesh == 1;
    const world::Case c = bits::make(f, false, 2);
    INFO(c.describe());
    const auto device_of = [](int rank) { return rank % 2; };
    CHECK(run_world(
              c,
              [&](auto transport) {
                const int device = device_of(transport->rank());
                return staged_on(std::move(transport), device);
              },
              device_of) == alone);
  }
}

TEST_CASE("two GPUs: memory and streams of the other GPU are rejected with errors that name them",
          "[cuda]") {
  if (!has_two()) return;
  Machine other(make_device(true, 1));
  float* const theirs = other.put(std::vector<float>(kNumel, 1.0f));
  {
    AbiRig rig;
    rig.params[1].data = theirs;
    CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(says("param 'bias'"));
    CHECK(says("can access"));
  }
  AbiRig rig;
  ok(rig.create());
  CHECK(muonrt_optimizer_set_grad(rig.optimizer, 1, theirs) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(says("param 'bias'"));
  ok(muonrt_optimizer_set_grad(rig.optimizer, 1, rig.memory.put(std::vector<float>(kNumel, 2.0f))));
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.lr = 0.5;
  args.device_grad_scale_inv = theirs;
  const std::vector<float> before = rig.whole();
  CHECK(muonrt_optimizer_step(nullptr, rig.optimizer, &args) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(says("device_grad_scale_inv"));
  cudaStream_t stream = nullptr;
  cudaSetDevice(1);
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
  CHECK(rig.step(stream) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(says("the caller's stream is not one of CUDA device 0's primary context"));
  cudaStreamDestroy(stream);
  cudaSetDevice(0);
  CHECK(rig.whole() == before);
  CHECK(rig.step(nullptr) == MUONRT_OK);
}

TEST_CASE("two GPUs: the host never copies from memory of the other GPU", "[cuda]") {
  if (!has_two()) return;
  Machine mine(make_device(true, 0)), other(make_device(true, 1));
  const std::vector<char> bytes(4096);
  char* const to = mine.put(bytes);
  const char* const theirs = other.put(bytes);
  for (const int64_t count : {8, 4096}) {
    INFO(count << " bytes");
    CHECK_THROWS_WITH(mine.ops().copy(mine.on(), to, theirs, count),
                      Catch::Contains("another device"));
  }
}

TEST_CASE("two GPUs: an optimizer on one GPU is rejected with a communicator of the other",
          "[cuda]") {
  if (!has_two()) return;
  AbiRig rig(1);
  rig.options.device_index = 0;
  CHECK(rig.create() == MUONRT_ERROR_NOT_SUPPORTED);
  CHECK(says("communicator"));
}
