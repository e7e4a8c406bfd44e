// Where a GPU's memory comes from: cudaMalloc, or the caller's functions.

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

/// Makes the vector's gradient finite, so that steps are not voted down.
void heal(AbiRig& rig) { rig.params[1].grad = rig.memory.put(std::vector<float>(kNumel, 0.25f)); }

/// What three steps leave.
std::vector<float> after_steps(AbiRig& rig) {
  for (int i = 0; i < 3; ++i) CHECK(rig.step(nullptr) == MUONRT_OK);
  return rig.whole();
}

std::vector<float> with_own_memory() {
  AbiRig rig;
  heal(rig);
  ok(rig.create());
  return after_steps(rig);
}

void end(AbiRig& rig) {
  muonrt_optimizer_destroy(rig.optimizer);
  rig.optimizer = nullptr;
}

}  // namespace

TEST_CASE(
    "cuda memory: all of an optimizer's comes from the caller's allocator, in a stream's order",
    "[cuda]") {
  AllocatorLedger ledger = gpu_ledger();
  const muonrt_allocator_t table = ledger.table();
  AbiRig rig;
  heal(rig);
  rig.options.allocator = &table;
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

TEST_CASE("cuda memory: an allocator that refuses, or gives the host's memory, ends the creation",
          "[cuda]") {
  check_refusals(gpu_ledger, [](const muonrt_allocator_t& table) {
    AbiRig rig;
    heal(rig);
    rig.options.allocator = &table;
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
  rig.options.allocator = &table;
  CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
  const std::string message = muonrt_get_last_error();
  CHECK(message.find("options: allocator: allocate gave") != std::string::npos);
  CHECK(message.find("no memory of CUDA device 0") != std::string::npos);
  CHECK(ledger.out.empty());
}

TEST_CASE("cuda memory: no step takes any, its exchanges and statistics included", "[cuda]") {
  AbiRig rig;
  heal(rig);
  rig.options.health_every = 1;
  rig.options.clip_norm = 1.0;
  ok(rig.create());
  const int64_t calls = slow_calls();
  CHECK(rig.step(nullptr) == MUONRT_OK);
  CHECK(slow_calls() == calls);
}
