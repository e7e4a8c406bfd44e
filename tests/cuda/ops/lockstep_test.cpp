// Tests Newton-Schulz on several shapes in one chunk. The steps of all shapes run together.

#include <catch2/catch.hpp>

#include "cuda/symmetric/symmetric_cases.hpp"
#include "unit/algo/lockstep_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

std::vector<backends::Backend> cuda_backends() {
  std::vector<backends::Backend> list = {backends::cuda(/*naive_products=*/true)};
  for (const SymmetricProvider own : symmetric_providers())
    list.push_back(backends::cuda(false, own));
  list.push_back(backends::cuda());
  return list;
}

}  // namespace

TEST_CASE(
    "cuda lockstep: shapes, forms, dtypes and lists in one launch are bitwise identical to "
    "separate launches",
    "[cuda][bits]") {
  const auto jobs = lockstep_cases::jobs();
  for (auto& backend : cuda_backends()) {
    const auto together = runner::orthogonalize(backend, jobs);
    for (size_t i = 0; i < jobs.size(); ++i) {
      INFO(backend.name << ", job " << i);
      const auto alone = runner::orthogonalize(backend, {jobs[i]})[0];
      CHECK(lockstep_cases::same_bits(together[i], alone));
    }
  }
}

TEST_CASE("cuda lockstep: only muonrt's own kernels compute several shapes in a launch", "[cuda]") {
  for (const SymmetricProvider provider : symmetric_providers())
    CHECK(make_device(provider)->ops().launch_limits().mixes_shapes ==
          (provider == SymmetricProvider::kSm90));
  CHECK_FALSE(make_host()->ops().launch_limits().mixes_shapes);
}
