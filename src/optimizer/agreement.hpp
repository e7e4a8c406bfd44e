#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/error.hpp"

namespace muonrt {

/// What `work` throws, as an Error: of any other exception the status is OUT_OF_MEMORY or INTERNAL.
std::optional<Error> error_of(const std::function<void()>& work);

/// If any rank brings an error, every rank throws the same one: that of the lowest such rank, with
/// the rank's number in front. Collective.
void agree(Comm& comm, const std::optional<Error>& mine);

/// Runs `work` everywhere; where it throws on any rank, every rank throws that error. Collective.
void together(Comm& comm, const std::function<void()>& work);

/// What must be equal on every rank, line by line.
class Fingerprint {
 public:
  void add(std::string label, std::string value) {
    lines_.push_back({std::move(label), std::move(value)});
  }
  /// Errors: MISMATCH, the same on every rank, naming the first differing line, the ranks and both
  /// values. Hashes alone are sent, and of that line a few KiB: tables may be long, ranks many.
  /// Collective.
  void compare(Comm& comm) const;

 private:
  struct Line {
    std::string label, value;
  };
  std::vector<uint64_t> prefixes() const;

  std::vector<Line> lines_;
};

}  // namespace muonrt
