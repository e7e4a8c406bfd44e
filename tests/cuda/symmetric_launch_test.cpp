// What the op does not reach: f16, several shapes in one launch; and the maps that the kernels and
// the emulated instructions share, against what the instruction set's manual says.

#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "control.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/symmetric_products.hpp"
#include "cuda/symmetric_cases.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

/// All products of a list in one call.
std::vector<std::vector<uint16_t>> results(SymmetricProvider provider,
                                           const std::vector<SymmetricCase>& cases, int64_t& wrong,
                                           int sms = 4, const Sm90Tuning& tuning = {},
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
  const JobList list = mixed_jobs(shapes, blocks);
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
  const auto clustered = [](const SymmetricCase& c, Tiles tiles, int slices, bool pairs = true) {
    const int64_t before = emulator::launched().clustered;
    int64_t wrong = 0;
    results(SymmetricProvider::kSm90, {c}, wrong, 4,
            {.tiles = tiles, .pairs = pairs, .slices = slices});
    CHECK(wrong == 0);
    return emulator::launched().clustered - before;
  };
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0) == 1);
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0, false) == 0);
  CHECK(clustered({1081, 70}, Tiles::kMedium, 0) == 0);
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
  Sm90Tuning tuning;
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

TEST_CASE("symmetric launch: bits follow from neither grid, batch nor company", "[emulated]") {
  for (const SymmetricProvider provider : symmetric_providers()) {
    Machine machine(make_device(provider));
    const int64_t n = 390, k = 150, ld = 160, c_ld = 416;
    const Bytes in = values(3, DType::kBF16, 3 * n * ld);
    Product p;
    p.a = {machine.put(in), DType::kBF16, n, k, ld, 3, n * ld};
    p.b = p.a;
    p.c = {machine.put(Bytes(static_cast<size_t>(2 * 3 * n * c_ld))),
           DType::kBF16,
           n,
           n,
           c_ld,
           3,
           n * c_ld};
    p.transpose_b = p.symmetric = true;
    p.alpha = 0.37f;
    const auto run = [&](int sms, bool alone) {
      SymmetricProducts products(*machine.device, provider, sms);
      std::vector<Product> list(1, p);
      if (alone) {
        for (MatrixBatch* m : {&list[0].a, &list[0].b, &list[0].c}) {
          m->data = static_cast<char*>(m->data) + 2 * m->stride;
          m->count = 1;
        }
      }
      products.multiply(list, handle_of(machine.on()));
      machine.finish();
      return machine.get(static_cast<const uint16_t*>(p.c.data) + n * c_ld, n * c_ld);
    };
    const auto first = run(2, false);
    CHECK(run(2, false) == first);
    CHECK(run(4, false) == first);
    CHECK(run(16, false) == first);
    machine.ops().fill(machine.on(), p.c.data, 0, 2 * 3 * n * c_ld);
    CHECK(run(4, true) == first);
  }
}

TEST_CASE("symmetric launch: products for sm_90a may begin early, and none touches memory then",
          "[emulated]") {
  // The stand-ins of the instructions throw where a thread that has not waited reaches memory.
  int64_t wrong = 0, before = emulator::early_launches();
  results(SymmetricProvider::kSm90, {{300, 70, 2, true, 1.0f, 2.0f}}, wrong);
  CHECK(emulator::early_launches() == before + 1);
  results(SymmetricProvider::kSm90, {{300, 70, 2, true, 1.0f, 2.0f}}, wrong, 4, {.early = false});
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

TEST_CASE("symmetric launch: a band of tiles is worked off column by column", "[emulated]") {
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

TEST_CASE("symmetric layouts: eight rows of a column of chunks lie in different banks",
          "[emulated]") {
  for (int chunk = 0; chunk < 8; ++chunk) {
    for (int first = 0; first < 128; first += 8) {
      std::set<int> wide, narrow;
      for (int row = first; row < first + 8; ++row) {
        wide.insert(swizzled128(row, chunk) % 128 / 16);
        if (chunk < 4) narrow.insert(swizzled64(row, chunk) % 128 / 16);
      }
      CHECK(wide.size() == 8);
      CHECK((chunk >= 4 || narrow.size() == 8));
    }
  }
}

TEST_CASE("symmetric layouts: no two chunks share a place", "[emulated]") {
  std::set<int> wide, narrow;
  for (int row = 0; row < 128; ++row) {
    for (int chunk = 0; chunk < 8; ++chunk) wide.insert(swizzled128(row, chunk));
    for (int chunk = 0; chunk < 4; ++chunk) narrow.insert(swizzled64(row, chunk));
  }
  CHECK(wide.size() == 128 * 8);
  CHECK(*wide.rbegin() == 128 * 128 - 16);
  CHECK(narrow.size() == 128 * 4);
  CHECK(*narrow.rbegin() == 128 * 64 - 16);
}

TEST_CASE("symmetric layouts: fragments hold every element once", "[emulated]") {
  std::set<std::pair<int, int>> a, b, c, wide;
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) a.insert({mma_a(lane, w).row, mma_a(lane, w).col});
    for (int w = 0; w < 2; ++w) b.insert({mma_b(lane, w).row, mma_b(lane, w).col});
    for (int v = 0; v < 4; ++v) c.insert({mma_c(lane, v).row, mma_c(lane, v).col});
  }
  for (int thread = 0; thread < 128; ++thread)
    for (int v = 0; v < 128; ++v) wide.insert({wgmma_c(thread, v).row, wgmma_c(thread, v).col});
  CHECK(a.size() == 16 * 8);
  CHECK(b.size() == 8 * 8);
  CHECK(c.size() == 16 * 8);
  CHECK(wide.size() == 64 * 256);
  CHECK(wide.rbegin()->first == 63);
}

// Numbers read off the manual's figures (PTX ISA 9.0: mma.m16n8k16, wgmma's D, stmatrix, and the
// 128-byte swizzle), which the emulated instructions cannot know: they use the kernels' maps.
TEST_CASE("symmetric layouts: some lanes, registers and chunks as the manual has them",
          "[emulated]") {
  using Places = std::vector<std::pair<int, int>>;
  const auto list = [](int count, const auto& map) {
    Places out;
    for (int i = 0; i < count; ++i) out.emplace_back(map(i).row, map(i).col);
    return out;
  };
  const auto a = [&](int lane) { return list(4, [=](int w) { return mma_a(lane, w); }); };
  const auto b = [&](int lane) { return list(2, [=](int w) { return mma_b(lane, w); }); };
  const auto c = [&](int lane) { return list(4, [=](int v) { return mma_c(lane, v); }); };
  const auto d = [&](int thread) { return list(8, [=](int v) { return wgmma_c(thread, v); }); };
  CHECK(a(0) == Places{{0, 0}, {8, 0}, {0, 8}, {8, 8}});
  CHECK(a(5) == Places{{1, 2}, {9, 2}, {1, 10}, {9, 10}});
  CHECK(a(30) == Places{{7, 4}, {15, 4}, {7, 12}, {15, 12}});
  CHECK(b(5) == Places{{1, 2}, {1, 10}});
  CHECK(b(30) == Places{{7, 4}, {7, 12}});
  CHECK(c(5) == Places{{1, 2}, {1, 3}, {9, 2}, {9, 3}});
  CHECK(c(30) == Places{{7, 4}, {7, 5}, {15, 4}, {15, 5}});
  CHECK(d(0) == Places{{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}, {8, 8}, {8, 9}});
  CHECK(d(37) ==
        Places{{17, 2}, {17, 3}, {25, 2}, {25, 3}, {17, 10}, {17, 11}, {25, 10}, {25, 11}});
  CHECK(wgmma_c(127, 126).row == 63);
  CHECK(wgmma_c(127, 126).col == 254);
  // Lanes 8 i to 8 i + 7 give the rows of the matrix that register i holds.
  const auto straight = [](int lane) { return stmatrix_straight(1, lane, 2); };
  const auto mirrored = [](int lane) { return stmatrix_mirrored(1, lane, 2); };
  const auto at = [&](const auto& map) {
    Places out;
    for (const int lane : {1, 9, 17, 25}) out.emplace_back(map(lane).row, map(lane).col);
    return out;
  };
  CHECK(at(straight) == Places{{17, 4}, {25, 4}, {17, 5}, {25, 5}});
  CHECK(at(mirrored) == Places{{33, 2}, {33, 3}, {41, 2}, {41, 3}});
  // The chunks of row 5, in the order of their places, are 5, 4, 7, 6, 1, 0, 3, 2; row 8 begins the
  // pattern again.
  const int places[] = {5, 4, 7, 6, 1, 0, 3, 2};
  for (int place = 0; place < 8; ++place) {
    CHECK(swizzled128(5, places[place]) == 5 * 128 + 16 * place);
    CHECK(swizzled128(8, place) == 8 * 128 + 16 * place);
  }
}

TEST_CASE("symmetric layouts: ldmatrix brings each word where mma wants it", "[emulated]") {
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) {
      // Word w of a lane is element pair lane % 4 of the row whose address lane 8 w + lane / 4
      // gave.
      const int giver = 8 * w + lane / 4;
      const Place2 row = ldmatrix_a(giver), want = mma_a(lane, w);
      CHECK(row.row == want.row);
      CHECK(8 * row.col + 2 * (lane % 4) == want.col);
      const Place2 col = ldmatrix_b(giver), in_b = mma_b(lane, w % 2);
      CHECK(col.row == in_b.row + 8 * (w / 2));
      CHECK(8 * col.col + 2 * (lane % 4) == in_b.col);
    }
  }
}

TEST_CASE("symmetric layouts: descriptors are those of the manual", "[emulated]") {
  // Bits 0-13 address / 16, 16-29 leading offset 1, 32-45 stride 1024 / 16 = 0x40, 62-63 swizzle 1.
  CHECK(wgmma_descriptor(0) == 0x4000004000010000u);
  CHECK(wgmma_descriptor(0x400) == 0x4000004000010040u);
  CHECK(wgmma_descriptor(0x38000) == 0x4000004000013800u);
  CHECK(wgmma_descriptor(0x38000 + 32) == wgmma_descriptor(0x38000) + 2);
}

TEST_CASE("symmetric layouts: f16 conversions are exact both ways", "[emulated]") {
  int64_t wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = widened<DType::kF16>(static_cast<uint16_t>(bits));
    const auto back = static_cast<uint16_t>(packed<DType::kF16>(x, 0.0f));
    wrong += std::isnan(x) ? (back & 0x7fffu) <= 0x7c00u : back != bits;
  }
  CHECK(wrong == 0);
  const auto round = [](float x) { return packed<DType::kF16>(x, 0.0f) & 0xffffu; };
  CHECK(round(1.0f + 0x1p-11f) == 0x3c00u);
  CHECK(round(1.0f + 3 * 0x1p-11f) == 0x3c02u);
  CHECK(round(65519.0f) == 0x7bffu);
  CHECK(round(65520.0f) == 0x7c00u);
  CHECK(round(0x1p-25f) == 0u);
  CHECK(round(0x1.8p-25f) == 1u);
}
