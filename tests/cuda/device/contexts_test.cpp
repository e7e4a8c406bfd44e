// Checks on which GPUs a process creates contexts, because each context takes hundreds of
// megabytes.

#include <catch2/catch.hpp>
#include <thread>

#include "comm/self_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "control.hpp"
#include "cuda/device/abi_rig.hpp"
#include "cuda/device/cached_memory.hpp"
#include "cuda/nccl/fake_nccl.hpp"
#include "cuda/nccl/nccl_comm.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr unsigned kSecond = 1u << 1;

/// The contexts and the current device of a thread that has never selected a GPU.
struct Trace {
  unsigned contexts = 0;
  int device = -1;
};
template <class Function>
Trace trace(const Function& function) {
  Trace out;
  emulator::forget_contexts();
  std::thread([&] {
    function();
    out.contexts = emulator::contexts();
    cudaGetDevice(&out.device);
  }).join();
  return out;
}

}  // namespace

TEST_CASE("contexts: an optimizer on the second GPU creates none on the first", "[emulated]") {
  muonrt_status_t status = MUONRT_ERROR_INTERNAL;
  const Trace left = trace([&] {
    AbiRig rig(1);
    ok(rig.create());
    ok(muonrt_optimizer_set_grad(rig.optimizer, 1,
                                 rig.memory.put(std::vector<float>(kNumel, 2.0f))));
    status = rig.step(nullptr);
  });
  CHECK(status == MUONRT_OK);
  CHECK(left.contexts == kSecond);
  CHECK(left.device == 0);
}

TEST_CASE(
    "contexts: a thread with its own context works in the primary one, and then has its own again",
    "[emulated]") {
  int64_t foreign = -1;
  bool own = false;
  std::thread([&] {
    emulator::enter_foreign_context(true);
    const int64_t before = emulator::foreign_calls();
    {
      AbiRig rig;
      ok(rig.create());
      ok(muonrt_optimizer_set_grad(rig.optimizer, 1,
                                   rig.memory.put(std::vector<float>(kNumel, 2.0f))));
      ok(rig.step(nullptr));
    }
    foreign = emulator::foreign_calls() - before;
    cudaPointerAttributes attributes;
    cudaPointerGetAttributes(&attributes, &attributes);
    own = emulator::foreign_calls() == before + foreign + 1;
  }).join();
  CHECK(foreign == 0);
  CHECK(own);
}

TEST_CASE("contexts: a communicator over NCCL on the second GPU creates none on the first",
          "[emulated]") {
  fake_nccl::reset();
  const Trace left = trace([&] {
    NcclOptions options;
    options.device_index = 1;
    const auto comm =
        cuda::make_nccl_comm(fake_nccl::api, make_bootstrap(make_self_transport()), options);
    Machine machine(make_device(true, 1));
    int64_t* const sum = machine.put_one(int64_t{0});
    const auto stream = machine.device->create_stream(comm->stream_kind());
    comm->reduce_sum(*stream, machine.put_one(int64_t{7}), sum, 1);
    const auto done = machine.device->create_event();
    machine.device->record(*done, *stream);
    machine.device->synchronize(*done, Deadline::in_ms(60'000));
  });
  CHECK(left.contexts == kSecond);
  CHECK(left.device == 0);
}

TEST_CASE("contexts: cached memory is queried on its own GPU", "[emulated]") {
  const Trace left = trace([] {
    auto last = std::make_shared<cuda::CudaEvent>(1);
    for (int i = 0; i < 2; ++i) cuda::CachedMemory(1, 64, true).keep_until(last);
  });
  CHECK(left.contexts == kSecond);
  CHECK(left.device == 0);
}
