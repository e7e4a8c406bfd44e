// Memory from the caller's allocator, on the host.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "support/faults/allocator_ledger.hpp"
#include "support/one_matrix.hpp"

namespace {

/// An optimizer on one rank.
struct Rig {
  Rig() {
    muonrt_optimizer_options_init(&options);
    REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  }
  ~Rig() {
    trainer.destroy();
    muonrt_comm_destroy(comm);
  }
  muonrt_status_t create() {
    const muonrt_status_t status = trainer.create(comm, &options);
    if (status != MUONRT_OK) message = muonrt_get_last_error();
    return status;
  }

  muonrt_optimizer_options_t options;
  muonrt_comm_t* comm = nullptr;
  OneMatrix trainer;
  std::string message;
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
    REQUIRE(own.trainer.step() == MUONRT_OK);
    REQUIRE(theirs.trainer.step() == MUONRT_OK);
  }
  CHECK(std::equal(own.trainer.data, own.trainer.data + 6, theirs.trainer.data));
  CHECK(ledger.calls == at_creation);
  muonrt_counters_t counters;
  muonrt_counters_init(&counters);
  REQUIRE(muonrt_optimizer_get_counters(theirs.trainer.optimizer, &counters) == MUONRT_OK);
  CHECK(counters.allocations == at_creation);
  CHECK(counters.allocated_bytes <= ledger.taken);
  CHECK(std::ssize(ledger.out) > 0);
  theirs.trainer.destroy();
  CHECK(ledger.out.empty());
  CHECK(ledger.wrong.empty());
  CHECK(std::all_of(ledger.devices.begin(), ledger.devices.end(), [](int d) { return d == -1; }));
  CHECK(ledger.without_stream == std::ssize(ledger.devices));
}

TEST_CASE("allocator: one that refuses at any call ends the creation, and has everything back",
          "[unit][api]") {
  check_refusals(host_ledger, [](const muonrt_allocator_t& table) {
    Rig rig;
    rig.options.allocator = &table;
    const muonrt_status_t status = rig.create();
    return std::pair(status, rig.message);
  });
}

TEST_CASE("allocator: memory that is not aligned is refused and goes back", "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  std::vector<char> memory;
  ledger.take = [&](int64_t bytes) -> void* {
    memory.resize(static_cast<size_t>(bytes) + 512);
    return memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256 + 64;
  };
  std::vector<void*> given;
  ledger.give = [&](void* at) { given.push_back(at); };
  const muonrt_allocator_t table = ledger.table();
  Rig rig;
  rig.options.allocator = &table;
  CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE(given.size() == 1);
  std::ostringstream address;
  address << "options: allocator: allocate gave 0x" << std::hex
          << reinterpret_cast<uintptr_t>(given[0]) << " for ";
  CHECK(rig.message.find(address.str()) != std::string::npos);
  CHECK(rig.message.find("not a multiple of 256") != std::string::npos);
  CHECK(ledger.out.empty());
}

TEST_CASE("allocator: half of one is refused by name", "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  const std::pair<const char*, void (*)(muonrt_allocator_t&)> cases[] = {
      {"release is NULL", [](auto& table) { table.release = nullptr; }},
      {"allocate is NULL", [](auto& table) { table.allocate = nullptr; }},
      {"allocate and release are NULL", [](auto& table) { muonrt_allocator_init(&table); }},
      {"reserved is 1", [](auto& table) { table.reserved = 1; }},
      {"struct_size is 3", [](auto& table) { table.struct_size = 3; }}};
  for (const auto& [why, change] : cases) {
    muonrt_allocator_t table = ledger.table();
    change(table);
    Rig rig;
    rig.options.allocator = &table;
    CHECK(rig.create() == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(rig.message, Catch::Contains(std::string("options: allocator: ") + why));
    CHECK(rig.trainer.optimizer == nullptr);
  }
  CHECK(ledger.calls == 0);
}
