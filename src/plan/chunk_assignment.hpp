#pragma once

#include <cmath>
#include <cstdint>
#include <map>

#include "base/error.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Numbers distinct keys in the order in which they first appear.
template <class Key>
class Numbering {
 public:
  int32_t of(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int32_t>(numbers_.size())).first->second;
  }

 private:
  std::map<Key, int32_t> numbers_;
};

/// Returns the cost of a matrix as an integer, so sums of costs do not depend on the order of their
/// terms.
inline int64_t cost_of(const Matrix& m, const ParamSpec& spec) {
  MUONRT_REQUIRE(m.cost < 0x1p62, Status::kInvalidArgument, "param '", spec.name, "': ", m.rows,
                 " x ", m.cols, " takes ", m.cost,
                 " FLOPs, which is more than the planner can count; use AdamW for it");
  return std::llround(m.cost);
}

}  // namespace muonrt
