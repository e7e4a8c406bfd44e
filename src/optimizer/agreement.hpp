#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/error.hpp"

namespace muonrt {

/// What `work` throws, as caught_error. Takes no memory.
template <class Work>
std::optional<Error> error_of(const Work& work) {
  try {
    work();
  } catch (const std::exception&) {
    return caught_error();
  }
  return std::nullopt;
}

// None of the collectives here fails for want of memory, nor changes the status that it agrees on:
// where a rank has no memory for the words, every rank's are fewer. (But for worlds of more than
// 512 ranks, where it closes the communicator.)

/// If any rank brings an error, the same one on all: that of the lowest such rank, with the rank's
/// number in front. Collective. Throws what the communicator does.
std::optional<Error> agreed(Comm& comm, const std::optional<Error>& mine);
/// Throws it.
void agree(Comm& comm, const std::optional<Error>& mine);

/// Runs `work` everywhere; where it throws on any rank, every rank throws that error. Collective.
template <class Work>
void together(Comm& comm, const Work& work) {
  agree(comm, error_of(work));
}

/// Runs `work`, for which peers may be waiting inside `comm`: what it throws ends `comm`.
template <class Work>
void or_end(Comm& comm, const Work& work) {
  if (const auto error = error_of(work)) {
    comm.abort(error->status(), error->message());
    throw error->of_ended_comm();
  }
}

/// What must be equal on every rank, line by line.
class Fingerprint {
 public:
  void add(std::string label, std::string value) {
    lines_.push_back({std::move(label), std::move(value)});
  }
  /// There was no memory for all lines.
  void cut() { whole_ = false; }
  /// MISMATCH, the same on every rank, naming the first differing line, the ranks and both values;
  /// none where all are equal, and whole. Hashes alone are sent, and of that line a few KiB: tables
  /// may be long, ranks many. Collective. Throws what the communicator does.
  std::optional<Error> difference(Comm& comm) const;
  /// Throws it.
  void compare(Comm& comm) const;

 private:
  struct Line {
    std::string label, value;
  };
  struct SentLine;
  uint64_t prefix(int64_t lines) const;
  std::optional<Error> line_difference(Comm& comm, int64_t most, std::vector<SentLine>& all) const;

  std::vector<Line> lines_;
  bool whole_ = true;
};

}  // namespace muonrt
