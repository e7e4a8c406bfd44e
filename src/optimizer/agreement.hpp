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
  /// Compares hashes, and only on a difference the tables. Errors: MISMATCH, the same on every
  /// rank, naming the first differing line, the ranks and both values. Collective.
  void compare(Comm& comm) const;
  uint64_t hash() const;

 private:
  struct Line {
    std::string label, value;
    bool operator==(const Line&) const = default;
  };
  std::string serialize() const;
  static std::vector<Line> parse(const std::string& text);
  static std::string difference(const std::vector<std::vector<Line>>& tables);

  std::vector<Line> lines_;
};

}  // namespace muonrt
