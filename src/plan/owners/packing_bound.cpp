#include "plan/owners/packing_bound.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace muonrt {

namespace {

__extension__ using Int128 = __int128;

constexpr int64_t kRoundings = 64;  // number of rounding functions u^(k) that are tried
constexpr size_t kThresholds = 64;  // number of sizes at which the bound L2 is tried

/// Returns true if the items do not fit into the bins after their sizes x have been rounded with
/// u^(k). u^(k) leaves x unchanged if (k + 1) x / limit is an integer. Otherwise it returns limit *
/// floor((k + 1) x / limit) / k. Items that fit into a bin still fit after this rounding.
/// Source: Fekete and Schepers 2001, New classes of fast lower bounds for bin packing problems.
bool overfull_rounded(const std::vector<CostCount>& items, int64_t ranks, int64_t limit,
                      int64_t k) {
  Int128 sum = 0;  // k times the sum of the rounded sizes
  for (const CostCount& item : items) {
    const Int128 scaled = static_cast<Int128>(k + 1) * item.cost;
    sum += item.count *
           (scaled % limit == 0 ? static_cast<Int128>(k) * item.cost : scaled / limit * limit);
  }
  return sum > static_cast<Int128>(k) * limit * ranks;
}

/// Returns true if the bound L2 proves that the items do not fit. L2 ignores items smaller than
/// items[last]. It assigns a full bin to each item that leaves no room for items[last], a separate
/// bin to each other item larger than limit / 2, and the remaining items to the free space.
/// Source: Martello and Toth 1990, Lower bounds and reduction procedures for bin packing.
bool overfull_from(const std::vector<CostCount>& items, int64_t ranks, int64_t limit, size_t last) {
  const int64_t smallest = items[last].cost;
  Int128 bins = 0, room = 0, shared = 0;
  for (size_t i = 0; i <= last; ++i) {
    const CostCount& item = items[i];
    if (item.cost > limit / 2) {
      bins += item.count;
      if (item.cost <= limit - smallest)
        room += static_cast<Int128>(limit - item.cost) * item.count;
    } else {
      shared += static_cast<Int128>(item.cost) * item.count;
    }
  }
  if (shared > room) bins += (shared - room + limit - 1) / limit;
  return bins > ranks;
}

/// Returns true if a bound proves that `items` do not fit into `ranks` bins of capacity `limit`,
/// which must be > 0.
bool overfull(const std::vector<CostCount>& items, int64_t ranks, int64_t limit) {
  if (items.front().cost > limit) return true;
  for (int64_t k = 1; k <= kRoundings; ++k) {
    if (overfull_rounded(items, ranks, limit, k)) return true;
  }
  size_t tried = 0;
  for (size_t i = 0; i < items.size() && tried < kThresholds; ++i) {
    if (items[i].cost > limit / 2 || items[i].cost == 0) continue;
    ++tried;
    if (overfull_from(items, ranks, limit, i)) return true;
  }
  return false;
}

/// Computes the cost of the n largest items. n must not decrease from one call to the next.
class Prefix {
 public:
  explicit Prefix(const std::vector<CostCount>& items) : items_(items) {}
  int64_t of(int64_t n) {
    while (at_ < items_.size() && passed_ + items_[at_].count <= n) {
      passed_ += items_[at_].count;
      cost_ += items_[at_].cost * items_[at_].count;
      ++at_;
    }
    return at_ < items_.size() ? cost_ + (n - passed_) * items_[at_].cost : cost_;
  }

 private:
  const std::vector<CostCount>& items_;
  size_t at_ = 0;
  int64_t passed_ = 0, cost_ = 0;
};

}  // namespace

int64_t packing_bound(const std::vector<CostCount>& items, int64_t ranks, int64_t known,
                      int64_t reached) {
  int64_t total = 0, count = 0;
  for (const CostCount& item : items) {
    total = checked_add(total, checked_mul(item.cost, item.count));
    count += item.count;
  }
  int64_t best = std::max(known, ceil_div(total, ranks));
  if (ranks == 1) return best;  // One rank does all the work.
  Prefix top(items), rest(items);
  for (int64_t k = 0; k * ranks + 1 <= count; ++k) {
    const int64_t n = k * ranks + 1;
    best = std::max(best, top.of(n) - rest.of(n - (k + 1)));
  }
  if (best == 0 || best >= reached) return best;
  // overfull() is not monotone in the limit, but every limit for which it returns true gives a
  // valid bound.
  if (overfull(items, ranks, reached - 1)) return reached;
  if (!overfull(items, ranks, best)) return best;
  int64_t low = best, high = reached - 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (overfull(items, ranks, middle) ? low : high) = middle;
  }
  return low + 1;
}

}  // namespace muonrt
