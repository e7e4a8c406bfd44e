// Tests products with launch settings that the test chooses: tiles, slices, grids, and several
// shapes in one launch.

#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "control.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

constexpr auto kProvider = SymmetricProvider::kSm90;
constexpr int kMaxSlices = 4;

Sm90Tuning with_tiles(Tiles tiles, int slices = 0) {
  return {.tiles = tiles, .pairs = true, .slices = slices};
}

/// Computes all products of a list in one call, and returns the memory of each result.
std::vector<std::vector<uint16_t>> results(const std::vector<SymmetricCase>& cases, int64_t& wrong,
                                           int sms = 4, const Sm90Tuning& tuning = {.pairs = true},
                                           bool leaves_sms = false) {
  Machine machine(make_device(kProvider));
  SymmetricProducts products(*machine.device, sms, tuning, leaves_sms);
  std::vector<SymmetricTrial> trials;
  std::vector<Product> list;
  for (const SymmetricCase& c : cases) {
    trials.emplace_back(machine, c, static_cast<uint64_t>(c.n * 1000 + c.k));
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

int64_t wrong(const std::vector<SymmetricCase>& cases, const Sm90Tuning& tuning, int sms = 4) {
  int64_t wrong = 0;
  results(cases, wrong, sms, tuning);
  return wrong;
}

void require_exact(const std::vector<SymmetricCase>& cases) {
  for (const SymmetricCase& c : cases)
    for (const Tiles tiles : {Tiles::kLarge, Tiles::kMedium, Tiles::kSmall, Tiles::kSmallWide}) {
      INFO(c.name() << ", tiles " << static_cast<int>(tiles));
      REQUIRE(wrong({c}, with_tiles(tiles)) == 0);
    }
}

/// The kinds of two consecutive jobs of a block, and whether the second job has fewer than three
/// stages.
using Succession = std::tuple<JobKind, JobKind, bool>;

void note_successions(const std::vector<SymmetricCase>& cases, int blocks,
                      std::set<Succession>& met) {
  std::vector<SymmetricShape> shapes;
  for (const SymmetricCase& c : cases) shapes.push_back({c.n, c.k, c.count});
  const JobList list = mixed_jobs(shapes, blocks, {.pairs = true});
  for (size_t block = 0; block + 1 < list.first.size(); ++block)
    for (int32_t i = list.first[block] + 1; i < list.first[block + 1]; ++i) {
      const TileJob &before = list.jobs[static_cast<size_t>(i) - 1],
                    &job = list.jobs[static_cast<size_t>(i)];
      const int stages = stages_of(shapes[static_cast<size_t>(job.shape)].k);
      met.insert({before.kind, job.kind, stages < 3});
    }
}

/// A batch of three products of random real numbers.
class RandomBatch {
 public:
  RandomBatch(int64_t n, int64_t k)
      : n_(n), ld_((n + 31) / 32 * 32), machine_(make_device(kProvider)) {
    const int64_t in_ld = (k + 31) / 32 * 32;
    const auto operand = [&](uint64_t seed, int64_t cols, int64_t ld) {
      void* const data = machine_.put(values(seed, DType::kBF16, kCount * n * ld));
      return MatrixBatch{data, DType::kBF16, n, cols, ld, kCount, n * ld};
    };
    product_.a = operand(3, k, in_ld);
    product_.b = operand(4, k, in_ld);
    product_.d = operand(5, n, ld_);
    product_.c = operand(6, n, ld_);
    product_.transpose_b = product_.symmetric = true;
    product_.alpha = 0.37f;
    product_.beta = 0.7f;
  }
  /// Returns the last matrix, computed together with the others or by itself.
  std::vector<uint16_t> last(const Sm90Tuning& tuning, int sms, bool single) {
    Product p = product_;
    for (MatrixBatch* m : {&p.a, &p.b, &p.c, &p.d}) {
      if (!single) continue;
      m->data = static_cast<char*>(m->data) + 2 * (kCount - 1) * m->stride;
      m->count = 1;
    }
    const auto* out = static_cast<uint16_t*>(product_.c.data) + (kCount - 1) * n_ * ld_;
    machine_.ops().fill(machine_.on(), product_.c.data, 0x5a, 2 * kCount * n_ * ld_);
    SymmetricProducts products(*machine_.device, sms, tuning);
    products.multiply({&p, 1}, handle_of(machine_.on()));
    machine_.finish();
    return machine_.get(out, n_ * ld_);
  }
  bool is_symmetric(const std::vector<uint16_t>& c) const {
    for (int64_t row = 0; row < n_; ++row)
      for (int64_t col = 0; col < row; ++col)
        if (c[static_cast<size_t>(row * ld_ + col)] != c[static_cast<size_t>(col * ld_ + row)])
          return false;
    return true;
  }

 private:
  static constexpr int64_t kCount = 3;
  int64_t n_, ld_;
  Machine machine_;
  Product product_;
};

}  // namespace

TEST_CASE("symmetric tiles: all are exact on integers at the edges of tiles, stages and the ring",
          "[emulated][every]") {
  require_exact(edge_cases());
}

TEST_CASE("symmetric tiles: all are exact on integers for every n to 600, batches 1 to 4",
          "[.full]") {
  require_exact(all_cases());
}

TEST_CASE("symmetric tiles: exact on integers if the depth is cut", "[emulated]") {
  int64_t turn = 0;
  for (const int64_t n : {1, 64, 65, 127, 129, 257, 384})
    for (const int64_t k : {130, 260, 700}) {
      const SymmetricCase c = case_of(n, k, 1 + turn % 3, turn + turn / 3);
      INFO(c.name());
      REQUIRE(slices_of(n, k, kMaxSlices) == (k < 3 * kStageDepth ? 2 : 4));
      for (const Tiles tiles : {Tiles::kSmall, Tiles::kLarge})
        REQUIRE(wrong({c}, with_tiles(tiles, kMaxSlices)) == 0);
      ++turn;
    }
}

TEST_CASE("symmetric tiles: exact on integers if D comes after any number of stages",
          "[emulated]") {
  for (int64_t stages = 1; stages <= 9; ++stages) {
    CAPTURE(stages);
    const int64_t k = stages * kStageDepth;
    const SymmetricCase with_d = {130, k - 3, 2, true, -2.0f, 3.0f, 7.0f};
    CHECK(wrong({with_d}, with_tiles(Tiles::kSmall)) == 0);
    CHECK(wrong({with_d}, with_tiles(Tiles::kSmallWide)) == 0);
    // The rows are the first rows of a tile on the diagonal, of the next tile, and of the tile in
    // the last column.
    CHECK(wrong({{300, k - 3, 2, true, -2.0f, 3.0f, 7.0f}}, with_tiles(Tiles::kMedium)) == 0);
    // Each of the four slices has the same number of terms.
    const SymmetricCase sliced = {130, 4 * k, 2, true, -2.0f, 3.0f, 7.0f};
    CHECK(slices_of(sliced.n, sliced.k, kMaxSlices) == 4);
    CHECK(wrong({sliced}, with_tiles(Tiles::kSmall, kMaxSlices)) == 0);
  }
}

TEST_CASE("symmetric tiles: bits depend on the slices, but not on tiles, grid, batch or order",
          "[emulated]") {
  struct Way {
    Sm90Tuning tuning;
    int sms;
    bool single = false;
  };
  const std::vector<Way> ways = {{{.tiles = Tiles::kLarge, .pairs = true}, 2},
                                 {{.tiles = Tiles::kLarge, .pairs = false}, 4},
                                 {{.tiles = Tiles::kLarge, .pairs = true}, 12, true},
                                 {{.tiles = Tiles::kLarge, .pairs = true, .early = false}, 16},
                                 {{.tiles = Tiles::kLarge, .raster = 3}, 4},
                                 {{.tiles = Tiles::kMedium}, 2},
                                 {{.tiles = Tiles::kMedium, .raster = 3}, 12, true},
                                 {{.tiles = Tiles::kSmall}, 4},
                                 {{.tiles = Tiles::kSmall, .early = false, .raster = 3}, 4, true},
                                 {{.tiles = Tiles::kSmallWide}, 4},
                                 {{}, 66}};
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{390, 150}, {130, 600}, {513, 330}}) {
    RandomBatch batch(n, k);
    for (const int slices : {1, 2, 4}) {
      const auto first = batch.last(with_tiles(Tiles::kLarge, slices), 4, false);
      CHECK(batch.is_symmetric(first));
      for (Way way : ways) {
        way.tuning.slices = slices;
        CAPTURE(n, k, slices, &way - ways.data());
        CHECK(batch.last(way.tuning, way.sms, way.single) == first);
      }
    }
  }
}

TEST_CASE("symmetric tiles: shapes, depths and batches in one launch, bf16 and f16", "[emulated]") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<SymmetricCase> cases = {{130, 70, 2, true, 1.0f, 2.0f, 0.0f, false, dtype},
                                              {33, 12, 5, false, 1.0f, 0.0f, 3.0f, false, dtype},
                                              // This product is cut into slices, so it has a
                                              // separate launch.
                                              {64, 1100, 1, false, 1.0f, 0.0f, 0.0f, false, dtype},
                                              {260, 90, 1, false, 2.0f, 0.0f, 0.0f, false, dtype}};
    int64_t wrong = 0;
    const auto together = results(cases, wrong);
    CHECK(wrong == 0);
    for (size_t i = 0; i < cases.size(); ++i) CHECK(results({cases[i]}, wrong)[0] == together[i]);
  }
}

TEST_CASE("symmetric tiles: blocks are launched in clusters only if a list has pairs",
          "[emulated]") {
  const auto clustered = [](const SymmetricCase& c, Tiles tiles, int slices,
                            std::optional<bool> pairs = {}) {
    const int64_t before = emulator::launched().clustered;
    CHECK(wrong({c}, {.tiles = tiles, .pairs = pairs, .slices = slices}) == 0);
    return emulator::launched().clustered - before;
  };
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0) == 0);
  CHECK(clustered({1081, 70}, Tiles::kLarge, 0, true) == 1);
  CHECK(clustered({1410, 70}, Tiles::kLarge, 0) == 1);
  CHECK(clustered({1410, 70}, Tiles::kLarge, 0, false) == 0);
  CHECK(clustered({1410, 70}, Tiles::kMedium, 0) == 0);
  CHECK(clustered({200, 70}, Tiles::kLarge, 0) == 0);   // all squares are on the diagonal: no pairs
  CHECK(clustered({200, 300}, Tiles::kLarge, 4) == 0);  // one block adds up the slices
  CHECK(clustered({200, 300}, Tiles::kSmall, 4) == 1);  // a cluster adds up the slices
}

TEST_CASE("symmetric tiles: a persistent grid that leaves SMs free is launched in clusters of two",
          "[emulated]") {
  struct Row {
    SymmetricCase of;
    Tiles tiles;
    int slices;
    int64_t clustered;  // expected if the grid leaves SMs free
  };
  // The small tiles occupy all SMs in any case.
  const std::vector<Row> rows = {{{1081, 70}, Tiles::kLarge, 0, 1},
                                 {{260, 90, 3, true, 1.0f, 2.0f}, Tiles::kLarge, 0, 1},
                                 {{200, 300}, Tiles::kLarge, 4, 1},
                                 {{390, 70, 2}, Tiles::kMedium, 0, 1},
                                 {{200, 70}, Tiles::kSmall, 0, 0}};
  for (const Row& row : rows) {
    INFO(row.of.name());
    const Sm90Tuning tuning{.tiles = row.tiles, .pairs = false, .slices = row.slices};
    const auto run = [&](bool leaves_sms) {
      const int64_t before = emulator::launched().clustered;
      int64_t wrong = 0;
      const auto out = results({row.of}, wrong, 4, tuning, leaves_sms);
      CHECK(wrong == 0);
      return std::pair(out, emulator::launched().clustered - before);
    };
    const auto [alone, none] = run(false);
    const auto [next_to_others, clustered] = run(true);
    CHECK(none == 0);
    CHECK(clustered == row.clustered);
    CHECK(next_to_others == alone);
  }
}

TEST_CASE("symmetric tiles: a consumer that begins later changes no bit", "[emulated]") {
  // The rows test pairs with D, slices, medium tiles, and depths of one and of two stages.
  const std::vector<std::pair<SymmetricCase, Sm90Tuning>> rows = {
      {{600, 330, 1, true, 1.0f, 2.0f}, {.tiles = Tiles::kLarge, .pairs = true}},
      {{200, 300}, {.tiles = Tiles::kLarge, .slices = 4}},
      {{390, 260, 2}, {.tiles = Tiles::kMedium}},
      {{300, 60}, {.tiles = Tiles::kLarge}},
      {{300, 120}, {.tiles = Tiles::kLarge}}};
  for (auto [of, tuning] : rows) {
    INFO(of.name());
    int64_t wrong = 0;
    const auto expected = results({of}, wrong, 4, tuning);
    for (tuning.skew = 1; tuning.skew <= 3; ++tuning.skew)
      CHECK(results({of}, wrong, 4, tuning) == expected);
    CHECK(wrong == 0);
  }
}

TEST_CASE("symmetric tiles: blocks that take tiles from a counter change no bit", "[emulated]") {
  // There are several shapes, a batch, and fewer tiles than blocks.
  const std::vector<std::vector<SymmetricCase>> launches = {
      {{600, 330, 2, true, 1.0f, 2.0f}, {300, 60, 1, false, 1.0f, 0.0f, 3.0f}},
      {{257, 130, 5, true, -2.0f, 1.0f, 7.0f, false, DType::kF16}},
      {{100, 70}}};
  for (const auto& cases : launches)
    for (const int sms : {2, 6, 20}) {
      CAPTURE(cases[0].name(), sms);
      Sm90Tuning tuning{.tiles = Tiles::kLarge, .pairs = false};
      int64_t wrong = 0;
      const auto expected = results(cases, wrong, sms, tuning);
      tuning.counter = true;
      for (const bool leaves_sms : {false, true})
        CHECK(results(cases, wrong, sms, tuning, leaves_sms) == expected);
      tuning.skew = 2;
      CHECK(results(cases, wrong, sms, tuning) == expected);
      CHECK(wrong == 0);
    }
}

TEST_CASE("symmetric tiles: the counter is reset by each launch", "[emulated]") {
  Machine machine(make_device(kProvider));
  SymmetricProducts products(*machine.device, 6,
                             {.tiles = Tiles::kLarge, .pairs = false, .counter = true});
  const SymmetricTrial trial(machine, {600, 130, 2, true, 1.0f, 2.0f}, 4);
  for (int launch = 0; launch < 3; ++launch) {
    trial.wipe(machine);
    products.multiply({&trial.product, 1}, handle_of(machine.on()));
    machine.finish();
    CHECK(trial.wrong(machine) == 0);
  }
}

TEST_CASE("symmetric tiles: pairs in complete and incomplete rounds, next to diagonals",
          "[emulated]") {
  // On 4, 8 and 12 blocks, the 6 pairs of a matrix take 3, 1.5 and 1 rounds. The right half of the
  // last cell is outside of the matrix.
  for (const int sms : {4, 8, 12})
    CHECK(wrong({{1081, 70, 1, true, 1.0f, 1.0f}, {520, 200, 2}}, {.pairs = true}, sms) == 0);
  // There are 15 pairs for 15 clusters, and 12 jobs on the diagonal for 30 blocks.
  CHECK(wrong({{1410, 100}}, {.pairs = true}, 30) == 0);
}

TEST_CASE(
    "symmetric tiles: a tile is stored during the first stages of the next, whether it has few or "
    "many",
    "[emulated]") {
  std::set<Succession> met;
  const auto run = [&](const std::vector<SymmetricCase>& cases, int sms) {
    CHECK(wrong(cases, with_tiles(Tiles::kLarge), sms) == 0);
    note_successions(cases, sms, met);
  };
  // The products have one to six stages of 64 terms, with D and without D, on blocks that have many
  // tiles, a few tiles, or one tile.
  for (const bool with_d : {false, true}) {
    const float beta = with_d ? 1.0f : 0.0f;
    const std::vector<SymmetricCase> cases = {{300, 1, 2, with_d, 1.0f, beta, 7.0f},
                                              {257, 100, 1, with_d, with_d ? -2.0f : 2.0f, beta},
                                              {390, 129, 1, !with_d, 1.0f, 3.0f},
                                              {64, 250, 3, with_d, 1.0f, beta, -5.0f},
                                              {520, 320, 1, !with_d, 1.0f, 1.0f, 2.0f},
                                              {130, 321, 2, with_d, 1.0f, beta}};
    for (const int sms : {2, 6, 40}) run(cases, sms);
    run({{390, 270, 3, with_d, 1.0f, beta}}, 4);  // some blocks get several wide tiles in a row
    for (const int64_t k : {70, 270})
      for (const int sms : {2, 12})
        run({{520, k, 1, with_d, 1.0f, beta}, {1081, 60, 1, !with_d, 1.0f, 2.0f, 3.0f}}, sms);
  }
  // Each kind precedes each kind that may follow it. The second job has fewer stages or more stages
  // than there are squares to store while it runs.
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
}

TEST_CASE("symmetric tiles: products for sm_90a may begin early, but then read no memory",
          "[emulated]") {
  // If a thread accesses memory before it has waited for the previous launch, the emulated
  // instructions throw an error.
  const std::vector<SymmetricCase> cases = {{300, 70, 2, true, 1.0f, 2.0f}};
  const int64_t before = emulator::early_launches();
  CHECK(wrong(cases, {.pairs = true}) == 0);
  CHECK(emulator::early_launches() == before + 1);
  CHECK(wrong(cases, {.pairs = true, .early = false}) == 0);
  CHECK(emulator::early_launches() == before + 1);
}

TEST_CASE("symmetric tiles: SMs that are reserved for a communicator make the grid smaller",
          "[emulated]") {
  emulator::pretend_sms(12);
  for (const auto& [reserved, blocks] :
       {std::pair{0, 12}, {1, 10}, {4, 8}, {8, 4}, {11, 2}, {1000, 2}}) {
    CAPTURE(reserved);
    Machine machine(make_device(kProvider, reserved, {.tiles = Tiles::kLarge}));
    const SymmetricTrial trial(machine, {530, 90, 2}, 7);
    machine.ops().reserve(530, 530, 90, DType::kBF16);
    const int64_t before = emulator::launched().blocks;
    machine.ops().multiply(machine.on(), trial.product);
    CHECK(emulator::launched().blocks - before == blocks);
    CHECK(trial.wrong(machine) == 0);
  }
  emulator::pretend_sms(2);
}
