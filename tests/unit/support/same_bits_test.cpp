#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "backend/weight_bits.hpp"
#include "support/bits_cases.hpp"
#include "support/check_same.hpp"
#include "support/covering.hpp"
#include "support/sanitized.hpp"

using namespace muonrt;

namespace {

constexpr int kSteps = 5;
// Only every `kEach`-th row of the covering arrays runs.
constexpr size_t kEach = kSanitized ? 9 : 1;

void check_same(const bits::Factors& factors, bool half, const world::Tensors& reference) {
  world::Case c = bits::make(factors, half, kSteps);
  c.async = factors.window % 2 == 0;
  INFO(c.describe());
  const world::Outcome outcome = world::run(c);
  world::check_same(c, outcome, reference);
  for (const StepReport& r : outcome.reports) {
    if (factors.variant == 0) CHECK(r.planned == 9);
  }
}

bits::Factors from_row(const std::vector<int>& row) {
  return {.mesh = static_cast<size_t>(row[0]),
          .scheme = row[1],
          .window = row[2] + 1,
          .chunk = row[3],
          .commit = row[4],
          .threads = row[5] + 1};
}

void covering_array(bool half) {
  const auto reference = bits::reference_ops(half, kSteps);
  const auto meshes = static_cast<int>(bits::meshes().size());
  const auto rows = covering::pairwise({meshes, bits::kSchemes, 8, 3, 2, 2}, 20261120);
  CHECK(rows.size() >= static_cast<size_t>(meshes) * 8);
  for (size_t i = 0; i < rows.size(); i += kEach) check_same(from_row(rows[i]), half, reference);
}

}  // namespace

TEST_CASE(
    "same bits: parameters and state are equal over a pairwise covering array of meshes and "
    "settings, f32",
    "[bits]") {
  covering_array(false);
}

TEST_CASE("same bits: bf16 parameters, gradients and iteration", "[bits]") { covering_array(true); }

TEST_CASE("same bits: every variant of orthogonalization, with f16, AOL and blocks", "[bits]") {
  const auto meshes = static_cast<int>(bits::meshes().size());
  std::vector<world::Tensors> references;
  for (int variant = 0; variant < bits::kVariants; ++variant)
    references.push_back(bits::reference_ops(false, kSteps, variant));
  // The variants are useful only if each of them gives different weights.
  for (int variant = 1; variant < bits::kVariants; ++variant)
    CHECK(references[static_cast<size_t>(variant)].params != references[0].params);
  const auto rows =
      covering::pairwise({meshes, bits::kVariants - 1, 4, 3, 2, bits::kSchemes}, 20261122);
  for (size_t i = 0; i < rows.size(); i += kEach) {
    const auto& row = rows[i];
    const int variant = row[1] + 1;
    const bits::Factors f = {.mesh = static_cast<size_t>(row[0]),
                             .scheme = row[5],
                             .window = row[2] + 1,
                             .chunk = row[3],
                             .commit = row[4],
                             .variant = variant};
    check_same(f, false, references[static_cast<size_t>(variant)]);
  }
}

TEST_CASE("same bits: random draws", "[bits]") {
  const unsigned seed = Catch::rngSeed();
  WARN("random draws with seed " << seed << " (give it as --rng-seed)");
  std::mt19937 random(seed);
  const auto reference = bits::reference_ops(false, kSteps);
  for (int draw = 0; draw < (kSanitized ? 3 : 12); ++draw) {
    bits::Factors f;
    f.mesh = random() % bits::meshes().size();
    f.scheme = static_cast<int>(random() % bits::kSchemes);
    f.window = static_cast<int>(1 + random() % 8);
    f.chunk = static_cast<int>(random() % 3);
    f.commit = static_cast<int>(random() % 2);
    f.threads = static_cast<int>(1 + random() % 2);
    check_same(f, false, reference);
  }
}

TEST_CASE("same bits: a few worlds for ThreadSanitizer", "[bits][tsan]") {
  const auto reference = bits::reference_ops(false, kSteps);
  check_same({.mesh = 5, .scheme = 1, .window = 2, .threads = 2}, false, reference);
  check_same({.mesh = 3, .window = 1, .chunk = 1, .commit = 1}, false, reference);
  check_same({.mesh = 9, .scheme = 5}, false, reference);
}

TEST_CASE("same bits: the full product", "[.full][bits]") {
  for (const bool half : {false, true}) {
    const auto reference = bits::reference_ops(half, kSteps);
    for (size_t mesh = 0; mesh < bits::meshes().size(); ++mesh) {
      for (int scheme = 0; scheme < bits::kSchemes; ++scheme) {
        for (int window = 1; window <= 8; ++window) {
          for (int rest = 0; rest < 12; ++rest) {
            check_same({.mesh = mesh,
                        .scheme = scheme,
                        .window = window,
                        .chunk = rest % 3,
                        .commit = rest / 3 % 2,
                        .threads = 1 + rest / 6},
                       half, reference);
          }
        }
      }
    }
  }
}

TEST_CASE("same bits: master weights and remainders equal the f32 parameter", "[bits]") {
  // bf16 parameters must change like f32 parameters with the same initial values.
  for (const MasterKind kind : {MasterKind::kOwned, MasterKind::kRemainder}) {
    world::Case half = bits::make({}, false, kSteps), full = half;
    for (world::Param& p : half.params) {
      p.dtype = DType::kBF16;
      p.master_kind = kind;
    }
    world::on_ranks(1, [&](Comm& comm) {
      world::Rank a(half, comm), b(full, comm);
      for (int64_t p = 0; p < std::ssize(half.params); ++p)
        // Copies the upper half of an f32 value.
        for (size_t e = 0; e < a.data(p).size() / 2; ++e) {
          std::memset(b.data(p).data() + 4 * e, 0, 2);
          std::memcpy(b.data(p).data() + 4 * e + 2, a.data(p).data() + 2 * e, 2);
        }
      // Both optimizers use the same f32 gradients.
      StepReport report;
      for (int step = 0; step < kSteps; ++step) {
        a.step(step, report);
        b.step(step, report);
      }
      for (int64_t p = 0; p < std::ssize(half.params); ++p) {
        INFO(half.params[static_cast<size_t>(p)].name);
        if (kind == MasterKind::kOwned) {
          CHECK(a.state(p, StateKind::kMaster) == b.data(p));
          continue;
        }
        const auto low = a.state(p, StateKind::kRemainder);
        int64_t different = 0;
        for (size_t e = 0; e < low.size() / 2; ++e) {
          uint16_t high, rest;
          std::memcpy(&high, a.data(p).data() + 2 * e, 2);
          std::memcpy(&rest, low.data() + 2 * e, 2);
          const float joined = join_weight(high, rest);
          different += std::memcmp(&joined, b.data(p).data() + 4 * e, 4) != 0;
        }
        CHECK(different == 0);
      }
    });
  }
}
