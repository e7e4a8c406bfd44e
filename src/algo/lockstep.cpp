#include "algo/lockstep.hpp"

#include <cstddef>

namespace muonrt {

namespace {

/// Whether a kernel for symmetric products has to run; alpha 0 is a sum.
bool is_symmetric_product(const Product& p) { return p.symmetric && p.alpha != 0.0f; }

}  // namespace

void run_in_lockstep(Ops& ops, Stream& stream, std::span<const std::vector<Round>> iterations) {
  std::vector<size_t> next(iterations.size(), 0);
  std::vector<Product> products;
  std::vector<const Round*> rounds;
  const auto take = [&](bool symmetric) {
    products.clear(), rounds.clear();
    for (size_t i = 0; i < iterations.size(); ++i) {
      if (next[i] == iterations[i].size()) continue;
      const Round& round = iterations[i][next[i]];
      if (is_symmetric_product(round.product) != symmetric) continue;
      ++next[i];
      products.push_back(round.product);
      rounds.push_back(&round);
    }
    return !products.empty();
  };
  while (take(false) || take(true)) {
    ops.multiply(stream, products);
    for (const Round* round : rounds)
      for (const auto& then : round->then) then();
  }
}

}  // namespace muonrt
