// Tests the caller's allocator on the host.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "muonrt/checkpoint.h"
#include "muonrt/inspect.h"
#include "support/faults/allocator_ledger.hpp"
#include "support/one_matrix.hpp"

namespace {

/// An optimizer on one rank.
struct Fixture {
  Fixture() {
    muonrt_optimizer_options_init(&options);
    muonrt_tuning_options_init(&tuning);
    options.tuning = &tuning;
    REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  }
  ~Fixture() {
    trainer.destroy();
    muonrt_comm_destroy(comm);
  }
  muonrt_status_t create() {
    const muonrt_status_t status = trainer.create(comm, &options);
    if (status != MUONRT_OK) message = muonrt_get_last_error();
    return status;
  }

  muonrt_optimizer_options_t options;
  muonrt_tuning_options_t tuning;
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

TEST_CASE("allocator: an optimizer allocates and releases all memory with the caller's functions",
          "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  const muonrt_allocator_t table = ledger.table();
  Fixture own, theirs;
  theirs.tuning.allocator = &table;
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
  REQUIRE(muonrt_optimizer_get_counters(&counters, theirs.trainer.optimizer) == MUONRT_OK);
  CHECK(counters.allocations == at_creation);
  CHECK(counters.allocated_bytes <= ledger.taken);
  CHECK(std::ssize(ledger.out) > 0);
  theirs.trainer.destroy();
  CHECK(ledger.out.empty());
  CHECK(ledger.wrong.empty());
  CHECK(std::all_of(ledger.devices.begin(), ledger.devices.end(), [](int d) { return d == -1; }));
  CHECK(ledger.without_stream == std::ssize(ledger.devices));
}

TEST_CASE("allocator: the allocated and the planned bytes are those of muonrt_optimizer_get_memory",
          "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  const muonrt_allocator_t table = ledger.table();
  Fixture fixture;
  fixture.tuning.allocator = &table;
  REQUIRE(fixture.create() == MUONRT_OK);
  muonrt_optimizer_t* const optimizer = fixture.trainer.optimizer;
  muonrt_memory_t m;
  muonrt_memory_init(&m);
  REQUIRE(muonrt_optimizer_get_memory(&m, optimizer) == MUONRT_OK);
  // The host device allocates 256 more bytes before each block, where it stores the size of the
  // block.
  int64_t bytes = 0;
  for (const auto& [memory, size] : ledger.out) bytes += size - 256;
  CHECK(m.allocated_bytes == bytes);
  CHECK(m.state_bytes == 6 * 4);
  CHECK(m.scratch_bytes > 0);
  CHECK(m.check_bytes > 0);
  CHECK(m.block_scratch_bytes + m.block_message_bytes + m.block_staged_bytes == 0);
  CHECK(m.message_bytes + m.staged_bytes + m.scratch_bytes + m.check_bytes + m.state_bytes <=
        m.allocated_bytes);
  CHECK(m.save_bytes == 0);
  int64_t reserved = 0;
  REQUIRE(muonrt_optimizer_save_reserve(&reserved, optimizer, nullptr) == MUONRT_OK);
  REQUIRE(muonrt_optimizer_get_memory(&m, optimizer) == MUONRT_OK);
  CHECK(m.save_bytes == reserved);
  CHECK(reserved == 2 * 6 * 4);  // momentum and parameter
  CHECK(m.allocated_bytes == bytes);

  char text[8192];
  int64_t needed = 0;
  REQUIRE(muonrt_optimizer_describe_plan(text, sizeof text, &needed, optimizer,
                                         MUONRT_FORMAT_JSON) == MUONRT_OK);
  const std::string json = text, row = json.substr(json.find("{\"rank\":0,"));
  const std::pair<const char*, int64_t> printed[] = {{"message_bytes", m.message_bytes},
                                                     {"staged_bytes", m.staged_bytes},
                                                     {"scratch_bytes", m.scratch_bytes},
                                                     {"check_bytes", m.check_bytes},
                                                     {"state_bytes", m.state_bytes}};
  for (const auto& [key, value] : printed)
    CHECK_THAT(row, Catch::Contains(std::string("\"") + key + "\":" + std::to_string(value)));

  m.struct_size = 3;
  CHECK(muonrt_optimizer_get_memory(&m, optimizer) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_get_memory(nullptr, optimizer) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Catch::Contains("memory is NULL"));
}

TEST_CASE("allocator: if any call returns NULL, the creation fails and releases everything",
          "[unit][api]") {
  check_refusals(host_ledger, [](const muonrt_allocator_t& table) {
    Fixture fixture;
    fixture.tuning.allocator = &table;
    const muonrt_status_t status = fixture.create();
    return std::pair(status, fixture.message);
  });
}

TEST_CASE("allocator: memory that is not aligned is rejected and released", "[unit][api]") {
  AllocatorLedger ledger = host_ledger();
  std::vector<char> memory;
  ledger.take = [&](int64_t bytes) -> void* {
    memory.resize(static_cast<size_t>(bytes) + 512);
    return memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256 + 64;
  };
  std::vector<void*> given;
  ledger.give = [&](void* at) { given.push_back(at); };
  const muonrt_allocator_t table = ledger.table();
  Fixture fixture;
  fixture.tuning.allocator = &table;
  CHECK(fixture.create() == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE(given.size() == 1);
  std::ostringstream address;
  address << "options: allocator: allocate returned 0x" << std::hex
          << reinterpret_cast<uintptr_t>(given[0]) << " for ";
  CHECK(fixture.message.find(address.str()) != std::string::npos);
  CHECK(fixture.message.find("not a multiple of 256") != std::string::npos);
  CHECK(ledger.out.empty());
}

TEST_CASE("allocator: an incomplete one is rejected with an error that names the field",
          "[unit][api]") {
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
    Fixture fixture;
    fixture.tuning.allocator = &table;
    CHECK(fixture.create() == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fixture.message, Catch::Contains(std::string("options: allocator: ") + why));
    CHECK(fixture.trainer.optimizer == nullptr);
  }
  CHECK(ledger.calls == 0);
}
