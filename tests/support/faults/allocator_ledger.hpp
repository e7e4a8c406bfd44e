#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "muonrt/allocator.h"

/// A caller-supplied allocator that records allocations and errors.
struct AllocatorLedger {
  /// Allocates memory; may return null.
  std::function<void*(int64_t bytes)> take;
  std::function<void(void* memory)> give;
  int64_t refuse_at = -1;  // number of the `allocate` call that returns null, from 0

  int64_t calls = 0, taken = 0;
  std::map<void*, int64_t> out;  // size in bytes of each allocation, by address
  std::vector<int32_t> devices;  // the device of each call
  int64_t without_stream = 0;
  std::string wrong;

  muonrt_allocator_t table() {
    muonrt_allocator_t table;
    muonrt_allocator_init(&table);
    table.state = this;
    table.allocate = [](void* state, int64_t bytes, int32_t device, void* stream) -> void* {
      auto& self = *static_cast<AllocatorLedger*>(state);
      self.note(device, stream);
      if (self.calls++ == self.refuse_at) return nullptr;
      void* const memory = self.take(bytes);
      if (memory) self.out[memory] = bytes, self.taken += bytes;
      return memory;
    };
    table.release = [](void* state, void* memory, int64_t bytes, int32_t device, void* stream) {
      auto& self = *static_cast<AllocatorLedger*>(state);
      self.note(device, stream);
      const auto at = self.out.find(memory);
      if (at == self.out.end() || at->second != bytes)
        self.wrong += muonrt::cat("gives back ", memory, " of ", bytes, " bytes; ");
      if (at == self.out.end()) return;
      self.out.erase(at);
      self.give(memory);
    };
    return table;
  }

 private:
  void note(int32_t device, const void* stream) {
    devices.push_back(device);
    without_stream += stream == nullptr;
  }
};

/// Creates an optimizer repeatedly. In run i, call i to the allocator returns null. Stops after the
/// first run that makes at most i calls, and therefore succeeds. Each run must release all its
/// memory.
/// @param make    Returns the ledger of a run.
/// @param create  Creates and destroys an optimizer with an allocator table, and returns status and
///     message.
template <class Make, class Create>
void check_refusals(Make make, Create create) {
  for (int64_t at = 0;; ++at) {
    AllocatorLedger ledger = make();
    ledger.refuse_at = at;
    const muonrt_allocator_t table = ledger.table();
    const std::pair<muonrt_status_t, std::string> ended = create(table);
    CAPTURE(at, ended.second);
    CHECK(ledger.wrong.empty());
    CHECK(ledger.out.empty());
    if (ledger.calls <= at) {
      CHECK(ended.first == MUONRT_OK);
      CHECK(at > 0);
      break;
    }
    CHECK(ended.first == MUONRT_ERROR_OUT_OF_MEMORY);
    CHECK(ended.second.find("allocate returned NULL") != std::string::npos);
  }
}
