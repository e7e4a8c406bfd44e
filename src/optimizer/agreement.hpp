#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/error.hpp"

namespace muonrt {

/// Calls `function` and returns the error that it throws, converted by current_error(), or nullopt.
/// Does not allocate.
template <class Function>
std::optional<Error> capture_error(const Function& function) {
  try {
    function();
  } catch (const std::exception&) {
    return current_error();
  }
  return std::nullopt;
}

// With up to 512 ranks, a failed allocation on a rank does not change the result of the following
// collectives, except that all ranks may return a shorter text. With more than 512 ranks, a failed
// allocation may abort the communicator.

/// If any rank passes an error, returns the error of the lowest such rank on every rank, with the
/// rank number before the message. Collective. Errors: any error of the communicator.
std::optional<Error> find_common_error(Comm& comm, const std::optional<Error>& own_error);
/// Like find_common_error(), but throws the error.
void throw_common_error(Comm& comm, const std::optional<Error>& own_error);

/// Calls `function` on every rank. If it throws on any rank, every rank throws that error.
/// Collective.
template <class Function>
void run_collectively(Comm& comm, const Function& function) {
  throw_common_error(comm, capture_error(function));
}

/// Calls `function` while peers may be waiting for this rank in `comm`. If `function` throws,
/// aborts `comm` so that the peers return, and throws the error as a communicator error.
template <class Function>
void run_or_abort(Comm& comm, const Function& function) {
  if (const auto error = capture_error(function)) {
    comm.abort(error->status(), error->message());
    throw error->as_comm_error();
  }
}

/// A list of labels and values that must be equal on all ranks.
class AgreementTable {
 public:
  void add(std::string label, std::string value) {
    entries_.push_back({std::move(label), std::move(value)});
  }
  /// Records that entries are missing because an allocation failed.
  void mark_incomplete() { complete_ = false; }
  /// Returns nullopt if the tables of all ranks are equal and complete. If tables differ, returns
  /// the same MISMATCH error on every rank. The error names the first entry that differs, two
  /// ranks, and their values. Because tables may be long, the ranks first exchange only hashes, and
  /// then about 4 KiB for the entry that differs. Collective. Errors: any error of the
  /// communicator.
  std::optional<Error> find_mismatch(Comm& comm) const;
  /// Like find_mismatch(), but throws the error.
  void require_equal(Comm& comm) const;

 private:
  struct Entry {
    std::string label, value;
  };
  struct SentEntry;
  /// Returns a hash of the first `count` entries.
  uint64_t prefix_hash(int64_t count) const;
  std::optional<Error> find_entry_mismatch(Comm& comm, int64_t limit,
                                           std::vector<SentEntry>& all) const;

  std::vector<Entry> entries_;
  bool complete_ = true;
};

}  // namespace muonrt
