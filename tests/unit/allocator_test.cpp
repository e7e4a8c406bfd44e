// Memory from the caller's allocator, on the host.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "muonrt/optimizer.h"
#include "support/allocator_ledger.hpp"

namespace {

/// An optimizer of a matrix and a vector on one rank, and a step of it.
struct Rig {
  Rig() {
    muonrt_optimizer_options_init(&options);
    REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  }
  ~Rig() {
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm);
  }
  muonrt_status_t create() {
    muonrt_group_t groups[2];
    muonrt_group_init(&groups[0], MUONRT_ROLE_MUON);
    muonrt_group_init(&groups[1], MUONRT_ROLE_ADAMW);
    muonrt_param_t params[2];
    for (int i = 0; i < 2; ++i) {
      muonrt_param_init(&params[i]);
      params[i].name = i == 0 ? "matrix" : "vector";
      params[i].group = i;
      params[i].ndim = i == 0 ? 2 : 1;
      params[i].shape = shape + i;
      params[i].data = data;
      params[i].grad = grad;
    }
    params[1].data = data + 6;
    params[1].grad = grad + 6;
    const muonrt_status_t status =
        muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2);
    if (status != MUONRT_OK) message = muonrt_last_error();
    return status;
  }
  muonrt_status_t step() {
    muonrt_step_t args;
    muonrt_step_init(&args);
    args.lr = 0.1;
    return muonrt_optimizer_step(optimizer, &args, nullptr);
  }

  muonrt_optimizer_options_t options;
  muonrt_comm_t* comm = nullptr;
  muonrt_optimizer_t* optimizer = nullptr;
  std::string message;
  int64_t shape[3] = {2, 3, 0};
  float data[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, grad[9] = {1, 0, 1, 0, 1, 1, 3, 2, 1};
};

AllocatorLedger host_ledger() {
  AllocatorLedger ledger;
  ledger.take = [](int64_t bytes) {
    return std::aligned_alloc(256, (static_cast<size_t>(bytes) + 255) / 256 * 256);
  };
  ledger.give = [](void* memory) { std::free(memory); };
  return ledger;
}

}  // namespace

TEST_CASE("allocator: all memory of an optimizer comes from the caller's and goes back to it",
          "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  const muonrt_allocator_t table = ledger.table();
  Rig own, theirs;
  theirs.options.allocator = &table;
  REQUIRE(own.create() == MUONRT_OK);
  REQUIRE(theirs.create() == MUONRT_OK);
  const int64_t at_creation = ledger.calls;
  CHECK(at_creation > 0);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(own.step() == MUONRT_OK);
    REQUIRE(theirs.step() == MUONRT_OK);
  }
  CHECK(std::equal(own.data, own.data + 9, theirs.data));
  CHECK(ledger.calls == at_creation);
  muonrt_counters_t counters;
  counters.struct_size = sizeof counters;
  REQUIRE(muonrt_optimizer_counters(theirs.optimizer, &counters) == MUONRT_OK);
  CHECK(counters.allocations == at_creation);
  CHECK(counters.allocated_bytes <= ledger.taken);
  CHECK(std::ssize(ledger.out) > 0);
  muonrt_optimizer_destroy(theirs.optimizer);
  theirs.optimizer = nullptr;
  CHECK(ledger.out.empty());
  CHECK(ledger.wrong.empty());
  CHECK(std::all_of(ledger.devices.begin(), ledger.devices.end(), [](int d) { return d == -1; }));
  CHECK(ledger.without_stream == std::ssize(ledger.devices));
}

TEST_CASE("allocator: one that refuses at any call ends the creation, and has everything back",
          "[unit][api]") {
  for (int64_t at = 0;; ++at) {
    AllocatorLedger ledger = host_ledger();
    ledger.refuse_at = at;
    const muonrt_allocator_t table = ledger.table();
    Rig rig;
    rig.options.allocator = &table;
    const muonrt_status_t status = rig.create();
    CAPTURE(at, rig.message);
    CHECK(ledger.wrong.empty());
    if (ledger.calls <= at) {
      CHECK(status == MUONRT_OK);
      CHECK(at > 0);
      break;
    }
    CHECK(status == MUONRT_ERROR_OUT_OF_MEMORY);
    CHECK(rig.message.find("the caller's allocator refused") != std::string::npos);
    CHECK(ledger.out.empty());
  }
}

TEST_CASE("allocator: memory that is not aligned is refused and goes back", "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  ledger.take = [](int64_t bytes) -> void* {
    auto* const memory = static_cast<char*>(std::malloc(static_cast<size_t>(bytes) + 512));
    return memory + 256 - reinterpret_cast<uintptr_t>(memory) % 256 + 64;
  };
  std::vector<void*> given;
  ledger.give = [&](void* memory) { given.push_back(memory); };
  const muonrt_allocator_t table = ledger.table();
  Rig rig;
  rig.options.allocator = &table;
  CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(rig.message.find("options: allocator: allocate gave") != std::string::npos);
  CHECK(rig.message.find("not a multiple of 256") != std::string::npos);
  CHECK(ledger.out.empty());
  CHECK(given.size() == 1);
}

TEST_CASE("allocator: half of one, and settings that contradict each other, are refused by name",
          "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  const auto refused = [&](const muonrt_allocator_t* table, int32_t stream_ordered,
                           const std::string& why) {
    Rig rig;
    rig.options.allocator = table;
    rig.options.stream_ordered = stream_ordered;
    CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
    INFO(rig.message);
    CHECK(rig.message.find(why) != std::string::npos);
    CHECK(rig.optimizer == nullptr);
  };
  muonrt_allocator_t table = ledger.table();
  table.release = nullptr;
  refused(&table, 0, "options: allocator: release is NULL");
  table = ledger.table();
  table.allocate = nullptr;
  refused(&table, 0, "options: allocator: allocate is NULL");
  muonrt_allocator_init(&table);
  refused(&table, 0, "options: allocator: allocate and release are NULL");
  table = ledger.table();
  table.reserved = 1;
  refused(&table, 0, "options: allocator: reserved is 1");
  table = ledger.table();
  table.struct_size = 3;
  refused(&table, 0, "options: allocator: struct_size is 3");
  refused(nullptr, 1, "options: stream_ordered is 1 on the host");
  refused(nullptr, 2, "options: stream_ordered is 2");
  CHECK(ledger.calls == 0);
}
