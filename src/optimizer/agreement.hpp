#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/error.hpp"

namespace muonrt {

/// What `work` throws, as current_error. Takes no memory.
template <class Work>
std::optional<Error> capture_error(const Work& work) {
  try {
    work();
  } catch (const std::exception&) {
    return current_error();
  }
  return std::nullopt;
}

// None of the collectives here fails for want of memory, nor changes the status that it agrees on:
// where a rank has no memory for the words, every rank's are fewer. (But for worlds of more than
// 512 ranks, where it closes the communicator.)

/// If any rank brings an error, the same one on all: that of the lowest such rank, with the rank's
/// number in front. Collective. Throws what the communicator does.
std::optional<Error> find_common_error(Comm& comm, const std::optional<Error>& mine);
/// Throws it.
void throw_common_error(Comm& comm, const std::optional<Error>& mine);

/// Runs `work` everywhere; where it throws on any rank, every rank throws that error. Collective.
template <class Work>
void run_collectively(Comm& comm, const Work& work) {
  throw_common_error(comm, capture_error(work));
}

/// Runs `work`, for which peers may be waiting inside `comm`: what it throws ends `comm`.
template <class Work>
void run_or_abort(Comm& comm, const Work& work) {
  if (const auto error = capture_error(work)) {
    comm.abort(error->status(), error->message());
    throw error->as_comm_error();
  }
}

/// What must be equal on every rank, line by line.
class AgreementTable {
 public:
  void add(std::string label, std::string value) {
    entries_.push_back({std::move(label), std::move(value)});
  }
  /// There was no memory for all lines.
  void mark_incomplete() { complete_ = false; }
  /// MISMATCH, the same on every rank, naming the first differing line, the ranks and both values;
  /// none where all are equal, and whole. Hashes alone are sent, and of that line a few KiB: tables
  /// may be long, ranks many. Collective. Throws what the communicator does.
  std::optional<Error> find_mismatch(Comm& comm) const;
  /// Throws it.
  void require_equal(Comm& comm) const;

 private:
  struct Entry {
    std::string label, value;
  };
  struct SentEntry;
  uint64_t prefix(int64_t lines) const;
  std::optional<Error> find_entry_mismatch(Comm& comm, int64_t most,
                                           std::vector<SentEntry>& all) const;

  std::vector<Entry> entries_;
  bool complete_ = true;
};

}  // namespace muonrt
