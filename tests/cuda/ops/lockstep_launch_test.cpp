// Tests how many launches several shapes need. The emulated GPU counts the launches.

#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "control.hpp"
#include "cuda/kernels/block_items.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"
#include "unit/algo/lockstep_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

/// Returns the launches of one Newton-Schulz iteration. `early` counts only kernels for sm_90a,
/// because no other kernel may begin early.
emulator::Launched launches_of(SymmetricProvider provider, const std::vector<runner::Job>& jobs) {
  auto backend = backends::cuda(/*naive_products=*/true, provider);
  const emulator::Launched before = emulator::launched();
  runner::orthogonalize(backend, jobs);
  const emulator::Launched now = emulator::launched();
  return {now.kernels - before.kernels, now.blocks - before.blocks, now.early - before.early};
}

/// Returns two shapes with three Newton-Schulz steps and three shapes with five steps.
std::vector<runner::Job> five_shapes() {
  const auto all = lockstep_cases::jobs();
  std::vector<runner::Job> out;
  const auto& pe = reference::lists::kPolarModded;
  for (const auto& [m, n] :
       {std::pair<int64_t, int64_t>(40, 50), {12, 30}, {64, 64}, {130, 140}, {1, 9}}) {
    const reference::List list(pe.begin(), pe.begin() + (m < 64 ? 3 : 5));
    out.push_back({runner::settings_of(list, 1.05, DType::kBF16), runner::standard(list),
                   DType::kBF16, lockstep_cases::batch(m, n, 1, DType::kBF16)});
  }
  return out;
}

}  // namespace

TEST_CASE("lockstep launches: five shapes take as many symmetric launches as the longest single",
          "[emulated]") {
  const auto jobs = five_shapes();
  int64_t longest = 0;
  for (const runner::Job& job : jobs) {
    const int64_t single = launches_of(SymmetricProvider::kSm90, {job}).early;
    CHECK(single == 2 * job.method.steps);  // X X^T and the polynomial
    longest = std::max(longest, single);
  }
  CHECK(launches_of(SymmetricProvider::kSm90, jobs).early == longest);
}

TEST_CASE("lockstep launches: more shapes than fit into a launch need two", "[emulated]") {
  auto jobs = five_shapes();
  const auto more = five_shapes();
  jobs.insert(jobs.end(), more.begin(), more.begin() + 2);
  // In the first three steps, there are seven shapes, which need two launches. In the last two
  // steps, there are three shapes, which need one launch.
  CHECK(launches_of(SymmetricProvider::kSm90, jobs).early == 2 * (3 * 2 + 2));
}

TEST_CASE("launch items: a matrix that is not stored as planned is an internal error",
          "[emulated]") {
  const std::vector<OwnedMatrix> owned = {{0, 100, 30}};
  MatrixBatch stored = {nullptr, DType::kBF16, 30, 100, 128, 1, 0};
  const std::vector<MatrixBlock> blocks = {
      {.matrix = 0, .rows = 20, .cols = 10, .row = 5, .col = 7, .packed_offset = 0}};
  CHECK(cuda::items_of(blocks, owned, &stored).items.size() == 1);
  stored.rows = 31;
  try {
    cuda::items_of(blocks, owned, &stored);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kInternal);
  }
}
