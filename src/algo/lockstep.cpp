#include "algo/lockstep.hpp"

#include <cstddef>
#include <utility>

namespace muonrt {

namespace {

/// Returns true if the product needs the symmetric kernel. A product with alpha = 0 is only a sum
/// and does not need it.
bool is_symmetric_product(const Product& p) { return p.symmetric && p.alpha != 0.0f; }

}  // namespace

std::vector<ProductSequence> in_lockstep(std::span<const std::vector<IterationStep>> iterations) {
  std::vector<size_t> next(iterations.size(), 0);
  std::vector<ProductSequence> sequences;
  const auto take = [&](bool symmetric) {
    ProductSequence call;
    for (size_t i = 0; i < iterations.size(); ++i) {
      if (next[i] == iterations[i].size()) continue;
      const IterationStep& step = iterations[i][next[i]];
      if (is_symmetric_product(step.products.front()) != symmetric) continue;
      ++next[i];
      call.products.insert(call.products.end(), step.products.begin(), step.products.end());
      call.then.insert(call.then.end(), step.then.begin(), step.then.end());
    }
    if (call.products.empty()) return false;
    if (sequences.empty() || !sequences.back().then.empty()) sequences.emplace_back();
    ProductSequence& sequence = sequences.back();
    sequence.products.insert(sequence.products.end(), call.products.begin(), call.products.end());
    sequence.ends.push_back(sequence.products.size());
    sequence.then = std::move(call.then);
    return true;
  };
  while (take(false) || take(true)) continue;
  return sequences;
}

void run(Ops& ops, Stream& stream, std::span<const ProductSequence> sequences) {
  for (const ProductSequence& sequence : sequences) {
    const std::span<const Product> all = sequence.products;
    if (!ops.multiply_by_matrix(stream, all)) {
      size_t begin = 0;
      for (const size_t end : sequence.ends) {
        ops.multiply(stream, all.subspan(begin, end - begin));
        begin = end;
      }
    }
    for (const auto& then : sequence.then) then();
  }
}

}  // namespace muonrt
