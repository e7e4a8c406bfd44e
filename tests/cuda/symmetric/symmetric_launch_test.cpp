// What the op does not reach: f16, several shapes in one launch, tuning.

#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "control.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/kernels/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

/// Also where narrow results have none by themselves.
const Sm90Tuning kPairs = {.pairs = true};

/// All products of a list in one call.
std::vector<std::vector<uint16_t>> results(SymmetricProvider provider,
                                           const std::vector<SymmetricCase>& cases, int64_t& wrong,
                                           int sms = 4, const Sm90Tuning& tuning = kPairs,
                                           int64_t partials = 512) {
  Machine machine(make_device(provider));
  SymmetricProducts products(*machine.device, provider, sms, tuning, partials);
  std::vector<SymmetricTrial> trials;
  std::vector<Product> list;
  for (const SymmetricCase& c : cases) {
    trials.emplace_back(machine, c, static_cast<uint64_t>(c.n));
    list.push_back(trials.back().product);
  }
  products.multiply(list, handle_of(machine.on()));
  machine.finish();
  std::vector<std::vector<uint16_t>> out;
  for (const SymmetricTrial& trial : trials) {
    wrong += trial.wrong(machine);
    out.push_back(trial.result(machine));
  }
  return out;
}

/// Kinds of two jobs one after the other in a block, and whether the second has fewer than three
/// stages.
using Succession = std::tuple<JobKind, JobKind, bool>;

void note_successions(const std::vector<SymmetricCase>& cases, int blocks,
                      std::set<Succession>& met) {
  std::vector<SymmetricShape> shapes;
  for (const SymmetricCase& c : cases) shapes.push_back({c.n, c.k, c.count});
  const JobList list = mixed_jobs(shapes, blocks, kPairs);
  for (size_t block = 0; block + 1 < list.first.size(); ++block)
    for (int32_t i = list.first[block] + 1; i < list.first[block + 1]; ++i) {
      const TileJob &before = list.jobs[static_cast<size_t>(i) - 1],
                    &job = list.jobs[static_cast<size_t>(i)];
      const int stages = stages_of(shapes[static_cast<size_t>(job.shape)].k);
      met.insert({before.kind, job.kind, stages < 3});
    }
}

}  // namespace

TEST_CASE("symmetric launch: shapes, depths and batches together, bf16 and f16", "[emulated]") {
  for (const SymmetricProvider provider : symmetric_providers()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const std::vector<SymmetricCase> cases = {
          {130, 70, 2, true, 1.0f, 2.0f, 0.0f, false, dtype},
          {33, 12, 5, false, 1.0f, 0.0f, 3.0f, false, dtype},
          {64, 1100, 1, false, 1.0f, 0.0f, 0.0f, false, dtype},  // in slices: a launch of its own
          {260, 90, 1, false, 2.0f, 0.0f, 0.0f, false, dtype}};
      int64_t wrong = 0;
      const auto together = results(provider, cases, wrong);
      CHECK(wrong == 0);
      for (size_t i = 0; i < cases.size(); ++i)
        CHECK(results(provider, {cases[i]}, wrong)[0] == together[i]);
    }
  }
}

TEST_CASE("symmetric launch: blocks come in clusters where a list has pairs, and only there",
          "[emulated]") {
  const auto clustered = [](const SymmetricCase& c, Tiles tiles, int slices,
                            std::optional<bool> pairs = {}) {
    const int64_t before = emulator::launched().clustered;
    int64_t wrong = 0;
    results(SymmetricProvider::kSm90, {c}, wrong, 4,
            {.tiles = tiles, .pairs = pairs, .slices = slices});
    CHECK(wrong == 0);
    return emulator::launched().clustered - before;
  };
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0) == 0);
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0, true) == 1);
  CHECK(clustered({1410, 70}, Tiles::kLarge, 0) == 1);
  CHECK(clustered({1410, 70}, Tiles::kLarge, 0, false) == 0);
  CHECK(clustered({1410, 70}, Tiles::kMedium, 0) == 0);
  CHECK(clustered({200, 70}, Tiles::kLarge, 0) == 0);   // on the diagonal alone
  CHECK(clustered({200, 300}, Tiles::kLarge, 4) == 0);  // sliced, a block adds up
  CHECK(clustered({200, 300}, Tiles::kSmall, 4) == 1);  // sliced, a cluster does
}

TEST_CASE("symmetric launch: pairs, broken rounds and diagonals of larger results", "[emulated]") {
  for (const SymmetricProvider provider : symmetric_providers()) {
    // 4, 8 and 12 blocks: 6 pairs a matrix make 3 rounds, 1 and a half, or 1. The last cell's right
    // half lies wholly outside.
    for (const int sms : {4, 8, 12}) {
      int64_t wrong = 0;
      results(provider, {{1081, 70, 1, true, 1.0f, 1.0f}, {520, 200, 2}}, wrong, sms);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("symmetric launch: a tile is stored behind the first stages of the next, few or many",
          "[emulated]") {
  Sm90Tuning tuning = kPairs;
  tuning.tiles = Tiles::kLarge;
  std::set<Succession> met;
  const auto run = [&](const std::vector<SymmetricCase>& cases, int sms) {
    int64_t wrong = 0;
    results(SymmetricProvider::kSm90, cases, wrong, sms, tuning);
    CHECK(wrong == 0);
    note_successions(cases, sms, met);
  };
  // One to six stages of 64, with D and without, in blocks that have many tiles, a few, or one.
  for (const bool with_d : {false, true}) {
    const float beta = with_d ? 1.0f : 0.0f;
    const std::vector<SymmetricCase> cases = {{300, 1, 2, with_d, 1.0f, beta, 7.0f},
                                              {257, 100, 1, with_d, with_d ? -2.0f : 2.0f, beta},
                                              {390, 129, 1, !with_d, 1.0f, 3.0f},
                                              {64, 250, 3, with_d, 1.0f, beta, -5.0f},
                                              {520, 320, 1, !with_d, 1.0f, 1.0f, 2.0f},
                                              {130, 321, 2, with_d, 1.0f, beta}};
    for (const int sms : {2, 6, 40}) run(cases, sms);
    run({{390, 270, 3, with_d, 1.0f, beta}}, 4);  // wide ones in a row
    for (const int64_t k : {70, 270})
      for (const int sms : {2, 12})
        run({{520, k, 1, with_d, 1.0f, beta}, {1081, 60, 1, !with_d, 1.0f, 2.0f, 3.0f}}, sms);
  }
  // Each kind before each that may follow it, with fewer stages than squares are stored behind, and
  // with more.
  const JobKind pair = JobKind::kPair, wide = JobKind::kWide, square = JobKind::kSquare;
  for (const auto& [before, after] : {std::pair(pair, pair),
                                      {pair, wide},
                                      {pair, square},
                                      {wide, wide},
                                      {wide, square},
                                      {square, wide},
                                      {square, square}})
    for (const bool few : {true, false}) {
      CAPTURE(static_cast<int>(before), static_cast<int>(after), few);
      CHECK(met.count({before, after, few}) == 1);
    }
  // Slices of one stage and more, squares alone.
  tuning.slices = 4;
  for (const int64_t k : {128, 200, 256, 1100}) run({{300, k, 3, true, 1.0f, 2.0f, 7.0f}}, 4);
}

TEST_CASE("symmetric launch: clusters with pairs and nothing else", "[emulated]") {
  for (const SymmetricProvider provider : symmetric_providers()) {
    // 15 pairs on 15 clusters, 12 jobs on the diagonal for 30 blocks.
    int64_t wrong = 0;
    results(provider, {{1410, 100}}, wrong, 30);
    CHECK(wrong == 0);
  }
}

TEST_CASE("symmetric launch: products for sm_90a may begin early, and none touches memory then",
          "[emulated]") {
  // The stand-ins of the instructions throw where a thread that has not waited reaches memory.
  int64_t wrong = 0, before = emulator::early_launches();
  results(SymmetricProvider::kSm90, {{300, 70, 2, true, 1.0f, 2.0f}}, wrong);
  CHECK(emulator::early_launches() == before + 1);
  results(SymmetricProvider::kSm90, {{300, 70, 2, true, 1.0f, 2.0f}}, wrong, 4,
          {.pairs = true, .early = false});
  results(SymmetricProvider::kSm80, {{300, 70, 2, true, 1.0f, 2.0f}}, wrong);
  CHECK(emulator::early_launches() == before + 1);
  CHECK(wrong == 0);
}

TEST_CASE("symmetric launch: results are right under every tuning, their bits its slices' alone",
          "[emulated][every]") {
  // With a pair, diagonals and edges; one whose depth is cut by itself; D.
  const std::vector<SymmetricCase> cases = {
      {390, 130, 1, true, 1.0f, 2.0f, 3.0f}, {100, 1030, 1, true, 2.0f, -1.0f}, {70, 70, 3}};
  for (const int slices : {0, 1, 2, 4}) {
    std::vector<std::vector<uint16_t>> first;
    for (const std::optional<Tiles>& tiles : {std::optional<Tiles>(),
                                              {Tiles::kLarge},
                                              {Tiles::kMedium},
                                              {Tiles::kSmall},
                                              {Tiles::kSmallWide}})
      for (const bool pairs : {true, false})
        for (const bool early : {true, false})
          for (const int64_t raster : {0, 3}) {
            CAPTURE(slices, tiles ? static_cast<int>(*tiles) : -1, pairs, early, raster);
            int64_t wrong = 0;
            const auto bits = results(SymmetricProvider::kSm90, cases, wrong, 4,
                                      {tiles, pairs, early, slices, raster});
            CHECK(wrong == 0);
            if (first.empty()) first = bits;
            CHECK((bits == first));
          }
  }
}

TEST_CASE("symmetric launch: a band of tiles is taken column by column", "[emulated]") {
  const std::vector<SymmetricShape> shapes = {{600, 64, 2}};
  const auto places = [](const std::vector<TileJob>& jobs) {
    std::vector<std::pair<int, int>> out;
    for (const TileJob& job : jobs)
      if (job.matrix == 0 && out.size() < 5) out.emplace_back(job.row, job.col);
    return out;
  };
  using Places = std::vector<std::pair<int, int>>;
  CHECK(places(small_jobs(shapes, Tiles::kSmall)) ==
        Places{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}});
  CHECK(places(small_jobs(shapes, Tiles::kSmall, 2)) ==
        Places{{0, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}});
  CHECK(places(medium_jobs(shapes, 1).jobs) == Places{{0, 0}, {0, 3}, {0, 6}, {0, 9}, {1, 2}});
  CHECK(places(medium_jobs(shapes, 1, 2).jobs) == Places{{0, 0}, {1, 2}, {0, 3}, {1, 5}, {0, 6}});
  // Squares of 2 x 2 cells; (0, 2), (2, 4) ... are pairs.
  const std::vector<SymmetricShape> large = {{1536, 64, 1}};
  const auto pairs = [&](int64_t raster) {
    Places out;
    for (const TileJob& job : mixed_jobs(large, 2, {.raster = raster}).jobs)
      if (job.kind == JobKind::kPair && job.row % 2 == 0 && out.size() < 4)
        out.emplace_back(job.row, job.col);
    return out;
  };
  CHECK(pairs(1) == Places{{0, 2}, {0, 4}, {0, 6}, {0, 8}});
  CHECK(pairs(2) == Places{{0, 2}, {0, 4}, {2, 4}, {0, 6}});
}

TEST_CASE("symmetric launch: more sums than the workspace holds take several launches",
          "[emulated]") {
  int64_t wrong = 0;
  results(SymmetricProvider::kSm80, {{8, 1024, 9}}, wrong, 4, {}, 5);
  CHECK(wrong == 0);
}
