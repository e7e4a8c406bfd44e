#include "algo/lockstep.hpp"

#include <cstddef>
#include <utility>

namespace muonrt {

namespace {

/// Returns true if the product needs the symmetric kernel. If alpha is 0, it is only a sum.
bool is_symmetric_product(const Product& p) { return p.symmetric && p.alpha != 0.0f; }

}  // namespace

std::vector<GroupedProducts> in_lockstep(std::span<const std::vector<IterationStep>> iterations) {
  std::vector<size_t> next(iterations.size(), 0);
  std::vector<GroupedProducts> calls;
  const auto take = [&](bool symmetric) {
    GroupedProducts call;
    for (size_t i = 0; i < iterations.size(); ++i) {
      if (next[i] == iterations[i].size()) continue;
      const IterationStep& step = iterations[i][next[i]];
      if (is_symmetric_product(step.products.front()) != symmetric) continue;
      ++next[i];
      call.products.insert(call.products.end(), step.products.begin(), step.products.end());
      call.then.insert(call.then.end(), step.then.begin(), step.then.end());
    }
    if (call.products.empty()) return false;
    calls.push_back(std::move(call));
    return true;
  };
  while (take(false) || take(true)) continue;
  return calls;
}

void run(Ops& ops, Stream& stream, std::span<const GroupedProducts> calls) {
  bool first = true;
  for (const GroupedProducts& call : calls) {
    const bool last = !call.then.empty() || &call == &calls.back();
    ops.multiply_in_sequence(stream, call.products, {first, last});
    first = last;
    for (const auto& then : call.then) then();
  }
}

}  // namespace muonrt
