// Tests where the memory of a GPU comes from: cudaMalloc, or the caller's functions.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "cuda/device/abi_rig.hpp"
#include "support/faults/allocator_ledger.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

AllocatorLedger gpu_ledger() {
  AllocatorLedger ledger;
  ledger.take = [](int64_t bytes) -> void* {
    void* memory = nullptr;
    return cudaMalloc(&memory, static_cast<size_t>(bytes)) == cudaSuccess ? memory : nullptr;
  };
  ledger.give = [](void* memory) { cudaFree(memory); };
  return ledger;
}

/// Makes the vector's gradient finite, so that steps are not skipped.
void make_gradient_finite(AbiRig& rig) {
  rig.params[1].grad = rig.memory.put(std::vector<float>(kNumel, 0.25f));
}

/// Returns the weights after three steps.
std::vector<float> after_steps(AbiRig& rig) {
  for (int i = 0; i < 3; ++i) CHECK(rig.step(nullptr) == MUONRT_OK);
  return rig.whole();
}

std::vector<float> with_own_memory() {
  AbiRig rig;
  make_gradient_finite(rig);
  ok(rig.create());
  return after_steps(rig);
}

void end(AbiRig& rig) {
  muonrt_optimizer_destroy(rig.optimizer);
  rig.optimizer = nullptr;
}

}  // namespace

TEST_CASE(
    "cuda memory: an optimizer allocates all of it with the caller's allocator, in stream order",
    "[cuda]") {
  AllocatorLedger ledger = gpu_ledger();
  const muonrt_allocator_t table = ledger.table();
  AbiRig rig;
  make_gradient_finite(rig);
  rig.tuning.allocator = &table;
  ok(rig.create());
  const int64_t at_creation = ledger.calls;
  CHECK(at_creation > 0);
  const auto values = after_steps(rig);
  CHECK(values == with_own_memory());
  CHECK(ledger.calls == at_creation);
  end(rig);
  CHECK(ledger.out.empty());
  CHECK(ledger.wrong.empty());
  CHECK(std::all_of(ledger.devices.begin(), ledger.devices.end(), [](int d) { return d == 0; }));
  CHECK(ledger.without_stream == 0);
}

TEST_CASE("cuda memory: creation fails if the allocator fails or returns host memory", "[cuda]") {
  check_refusals(gpu_ledger, [](const muonrt_allocator_t& table) {
    AbiRig rig;
    make_gradient_finite(rig);
    rig.tuning.allocator = &table;
    const muonrt_status_t status = rig.create();
    return std::pair(status, std::string(muonrt_get_last_error()));
  });
  AllocatorLedger ledger;
  ledger.take = [](int64_t bytes) {
    return std::aligned_alloc(256, (static_cast<size_t>(bytes) + 255) / 256 * 256);
  };
  ledger.give = [](void* memory) { std::free(memory); };
  const muonrt_allocator_t table = ledger.table();
  AbiRig rig;
  rig.tuning.allocator = &table;
  CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
  const std::string message = muonrt_get_last_error();
  CHECK(message.find("options: allocator: allocate returned") != std::string::npos);
  CHECK(message.find("no memory of CUDA device 0") != std::string::npos);
  CHECK(ledger.out.empty());
}

TEST_CASE("cuda memory: no step allocates any, not even for exchanges and statistics", "[cuda]") {
  AbiRig rig;
  make_gradient_finite(rig);
  rig.debug.health_every = 1;
  rig.options.clip_norm = 1.0;
  ok(rig.create());
  const int64_t calls = slow_calls();
  CHECK(rig.step(nullptr) == MUONRT_OK);
  CHECK(slow_calls() == calls);
}
