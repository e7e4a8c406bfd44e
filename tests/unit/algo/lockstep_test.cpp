// Newton-Schulz of several batches side by side.

#include "algo/lockstep.hpp"

#include <catch2/catch.hpp>

#include "support/numerics/reference_ops.hpp"
#include "unit/algo/lockstep_cases.hpp"

using namespace muonrt;

namespace {

/// Reference products that note which were given together: the depths of each call's.
class CountingOps : public reference::ReferenceOps {
 public:
  void multiply(Stream& stream, std::span<const Product> products) override {
    calls.emplace_back();
    for (const Product& p : products) {
      calls.back().push_back(p.a.cols);
      symmetric_calls += &p == &products.front() && p.symmetric && p.alpha != 0.0f;
    }
    ReferenceOps::multiply(stream, products);
  }
  std::vector<std::vector<int64_t>> calls;
  int64_t symmetric_calls = 0;
};

/// A product of empty matrices that is known by its depth.
Round round_of(int64_t depth, bool symmetric, std::function<void()> then = {}) {
  Round round;
  round.product.a.cols = depth;
  round.product.symmetric = symmetric;
  if (then) round.then.push_back(std::move(then));
  return round;
}

}  // namespace

TEST_CASE("lockstep: products that are not symmetric go ahead, symmetric ones wait for each other",
          "[unit][newton-schulz]") {
  CountingOps ops;
  reference::ImmediateStream stream;
  std::vector<int> order;
  std::vector<std::vector<Round>> iterations(3);
  iterations[0].push_back(round_of(1, true, [&] { order.push_back(1); }));
  iterations[0].push_back(round_of(2, true));
  iterations[1].push_back(round_of(11, false, [&] { order.push_back(11); }));
  iterations[1].push_back(round_of(12, false));
  iterations[1].push_back(round_of(13, true));
  iterations[1].push_back(round_of(14, false));
  run(ops, stream, in_lockstep(iterations));
  CHECK(ops.calls == std::vector<std::vector<int64_t>>{{11}, {12}, {1, 13}, {14}, {2}});
  CHECK(order == std::vector<int>{11, 1});
}

TEST_CASE("lockstep: an alpha of zero makes no symmetric product", "[unit][newton-schulz]") {
  CountingOps ops;
  reference::ImmediateStream stream;
  std::vector<std::vector<Round>> iterations(2);
  iterations[0] = {round_of(1, true), round_of(2, true)};
  iterations[0][0].product.alpha = 0.0f;
  iterations[1] = {round_of(3, true)};
  run(ops, stream, in_lockstep(iterations));
  CHECK(ops.calls == std::vector<std::vector<int64_t>>{{1}, {2, 3}});
}

TEST_CASE("newton-schulz: shapes, forms, dtypes and lists in lockstep have the bits of each alone",
          "[unit][newton-schulz][bits]") {
  const auto jobs = lockstep_cases::jobs();
  for (auto& backend : backends::all()) {
    const auto together = runner::orthogonalize(backend, jobs);
    for (size_t i = 0; i < jobs.size(); ++i) {
      INFO(backend.name << ", job " << i);
      const auto alone = runner::orthogonalize(backend, {jobs[i]})[0];
      CHECK(lockstep_cases::same_bits(together[i], alone));
    }
  }
}

TEST_CASE("newton-schulz: in lockstep there are as many symmetric calls as the longest has alone",
          "[unit][newton-schulz]") {
  const auto jobs = lockstep_cases::jobs();
  auto backend = backends::reference();
  int64_t longest = 0, all = 0;
  const auto symmetric_calls = [&](const std::vector<runner::Job>& list) {
    CountingOps ops;
    backend.ops = &ops;
    runner::orthogonalize(backend, list);
    return ops.symmetric_calls;
  };
  for (const runner::Job& job : jobs) {
    const int64_t alone = symmetric_calls({job});
    longest = std::max(longest, alone);
    all += alone;
  }
  CHECK(symmetric_calls(jobs) == longest);
  CHECK(all > 3 * longest);
}
