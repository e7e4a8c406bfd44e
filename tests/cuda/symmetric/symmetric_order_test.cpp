// Who computes what when in the mixed list of the symmetric products: how soon it ends, how much
// comes in pairs, how near in time the tiles of a matrix are. Which tiles and slices a shape has.

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"

using namespace muonrt::cuda;
using muonrt::Tiles;

namespace {

using Shapes = std::vector<SymmetricShape>;

int64_t cells_of_matrix(const SymmetricShape& s) { return cells_of(s.n) * (cells_of(s.n) + 1) / 2; }

/// Below which no list ends, in cells x stages.
int64_t least_makespan(const Shapes& shapes, int64_t blocks) {
  int64_t sum = 0, deepest = 0;
  for (const SymmetricShape& s : shapes) {
    sum += s.count * cells_of_matrix(s) * stages_of(s.k);
    deepest = std::max<int64_t>(deepest, stages_of(s.k));
  }
  return std::max(deepest, (sum + blocks - 1) / blocks);
}

int64_t time_of(const TileJob& job, const Shapes& shapes) {
  return (job.kind == JobKind::kSquare ? 1 : 2) *
         stages_of(shapes[static_cast<size_t>(job.shape)].k);
}

int64_t makespan(const Shapes& shapes, int blocks) {
  return busiest(mixed_jobs(shapes, blocks),
                 [&](const TileJob& job) { return time_of(job, shapes); });
}

int64_t pairs_in(const JobList& list) {
  const auto is_pair = [](const TileJob& job) { return job.kind == JobKind::kPair; };
  return std::count_if(list.jobs.begin(), list.jobs.end(), is_pair) / 2;
}

/// When each matrix of a list of one shape is first and last begun, as parts of the whole time;
/// of pairs and of what lies on the diagonal.
struct Times {
  explicit Times(const Shapes& shapes, int blocks) {
    const JobList list = mixed_jobs(shapes, blocks, {.pairs = true});
    const auto time = [&](const TileJob& job) { return time_of(job, shapes); };
    const auto all = static_cast<double>(busiest(list, time));
    const auto count = static_cast<size_t>(shapes[0].count);
    pairs.resize(count);
    diagonals.resize(count);
    for (size_t b = 0; b + 1 < list.first.size(); ++b) {
      int64_t now = 0;
      for (int32_t i = list.first[b]; i < list.first[b + 1]; ++i) {
        const TileJob& job = list.jobs[static_cast<size_t>(i)];
        const double at = static_cast<double>(now) / all;
        now += time(job);
        const auto m = static_cast<size_t>(job.matrix);
        if (job.kind == JobKind::kPair) pairs[m].push_back(at);
        if (job.kind == JobKind::kWide) diagonals[m].push_back(at);
      }
    }
  }
  std::vector<std::vector<double>> pairs, diagonals;
};

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

}  // namespace

TEST_CASE("symmetric order: a list of one shape ends about as soon as its work allows",
          "[emulated]") {
  // In cells: squares off the diagonal count as one here and take an SM a seventh longer, so where
  // they are many the list that ends first may have a few cells more.
  for (const int blocks : {2, 66, 124, 132}) {
    for (int64_t cells = 1; cells <= cells_of(20000); cells += 1 + cells / 16) {
      for (const int64_t batch : {1, 2, 3, 8, 32, 216}) {
        const Shapes shapes = {{cells * kCell, 64, batch}};
        if (batch * cells_of_matrix(shapes[0]) > 50000) continue;
        CAPTURE(blocks, cells, batch);
        const int64_t least = least_makespan(shapes, blocks) / 64 + 1,
                      most = least + least / 24 + 1;
        CHECK(makespan(shapes, blocks) / 64 <= most);
      }
    }
  }
}

TEST_CASE("symmetric order: pairs stay pairs where that makes no list longer", "[emulated]") {
  const auto pairs = [](int64_t n, int64_t batch, int blocks) {
    return pairs_in(mixed_jobs(Shapes{{n, 4096, batch}}, blocks, {.pairs = true}));
  };
  // n / 256 squares on a side, all above the diagonal: s (s - 1) / 2.
  CHECK(pairs(4096, 1, 132) == 120);
  CHECK(pairs(4096, 1, 124) == 120);
  CHECK(pairs(8192, 1, 132) == 496);
  CHECK(pairs(1024, 8, 132) == 48);
  CHECK(pairs(2048, 216, 124) == 216 * 28);
  // One round of squares, or nearly, is shorter than pairs.
  CHECK(pairs(1536, 1, 132) == 0);
  CHECK(makespan({{1536, 4096, 1}}, 132) == stages_of(4096));
}

TEST_CASE("symmetric order: launches of narrow results alone have no pairs", "[emulated]") {
  const auto pairs = [](const Shapes& shapes) { return pairs_in(mixed_jobs(shapes, 132)); };
  CHECK(pairs({{768, 2048, 128}}) == 0);
  CHECK(pairs({{1280, 5120, 64}}) == 0);
  CHECK(pairs({{1281, 5120, 64}}) > 0);
  CHECK(pairs({{768, 2048, 128}, {1280, 1280, 8}}) == 0);
  CHECK(pairs({{768, 2048, 128}, {2048, 2048, 8}}) > 0);
}

TEST_CASE("symmetric order: what lies on a diagonal comes beside the pairs of its matrix",
          "[emulated]") {
  // Else both kinds have their own time: what lies on a diagonal reads twice as much for a product,
  // more than the memory gives if all blocks do so at once.
  for (const int blocks : {124, 132}) {
    for (const auto& [n, batch] : {std::pair{2048, 216}, {1024, 300}, {4096, 40}, {1280, 200}}) {
      const Times times({{n, 7168, batch}}, blocks);
      for (size_t m = 0; m < times.pairs.size(); ++m) {
        CAPTURE(blocks, n, batch, m);
        REQUIRE_FALSE(times.pairs[m].empty());
        REQUIRE(std::abs(mean(times.pairs[m]) - mean(times.diagonals[m])) < 0.125);
      }
    }
  }
}

TEST_CASE("symmetric order: shapes together end sooner than one after the other", "[emulated]") {
  const std::vector<Shapes> lists = {
      {{1024, 16384, 1}, {2048, 2048, 8}}, {{2048, 18432, 1}, {768, 2048, 64}},
      {{1536, 9216, 1}, {1536, 1536, 12}}, {{1024, 4096, 8}, {768, 2048, 32}},
      {{2048, 8192, 1}, {1024, 2048, 8}},  {{2048, 7168, 1}, {2048, 2048, 1}, {1536, 2048, 2}},
      {{1024, 2816, 4}, {1024, 4096, 2}},  {{225, 7808, 34, 4}, {2002, 1088, 4}},
      {{438, 438, 30}, {212, 212, 36}},    {{637, 256, 14}, {1224, 1, 30}, {1006, 2, 36}}};
  for (const int blocks : {124, 132}) {
    for (const Shapes& shapes : lists) {
      int64_t apart = 0;
      for (const SymmetricShape& s : shapes) apart += makespan({s}, blocks);
      CAPTURE(blocks, shapes[0].n, shapes[0].k);
      CHECK(makespan(shapes, blocks) < apart);
    }
    // A deep matrix beside many others: a block that has one of its wide tiles has too much.
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(blocks, i);
      const auto least = static_cast<double>(least_makespan(lists[i], blocks));
      CHECK(static_cast<double>(makespan(lists[i], blocks)) < 1.15 * least);
    }
  }
}

TEST_CASE("symmetric order: mixed shapes are never far from what their work allows", "[emulated]") {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 300; ++i) {
    Shapes shapes;
    for (int64_t s = 0; s < 2 + below(4); ++s)
      shapes.push_back({1 + below(random() % 2 ? 6000 : 1500), 1 + below(random() % 2 ? 6400 : 300),
                        1 + below(random() % 2 ? 3 : 40)});
    int64_t deepest = 0;
    for (const SymmetricShape& s : shapes) deepest = std::max<int64_t>(deepest, stages_of(s.k));
    const int blocks = 2 * static_cast<int>(1 + below(66));
    CAPTURE(i, blocks);
    // What longest-first promises of jobs of two cells, and what squares take an SM more.
    const int64_t least = least_makespan(shapes, blocks);
    CHECK(makespan(shapes, blocks) <= least + least / 24 + 2 * deepest);
  }
}

TEST_CASE("symmetric order: the mixed list is as short as predicted", "[emulated]") {
  // Speed over a dense product at equal rate on 132 SMs: its cells over the busiest block's.
  // Source: reference kernels, 4.3, "mixed list"; if 128 x 128 tiles alone are shorter, theirs.
  struct Row {
    int64_t n, batch;
    int blocks;
    double gain;
  };
  for (const Row& row : {Row{2048, 1, 132, 0.97},
                         {2560, 1, 132, 1.52},
                         {3072, 1, 132, 1.45},
                         {4096, 1, 132, 1.94},
                         {7168, 1, 132, 1.83},
                         {8192, 1, 132, 1.94},
                         {16384, 1, 132, 1.97},
                         {1024, 8, 132, 1.29},
                         {2048, 8, 132, 1.72},
                         {4096, 8, 132, 1.94},
                         {1024, 32, 132, 1.72},
                         {768, 128, 132, 1.66},
                         {2048, 128, 132, 1.88},
                         // With 8 SMs left to communication.
                         {2048, 1, 124, 0.97},
                         {4096, 1, 124, 1.55},
                         {8192, 1, 124, 1.82},
                         {16384, 1, 124, 1.85}}) {
    CAPTURE(row.n, row.batch, row.blocks);
    const Shapes shapes = {{row.n, 1, row.batch}};
    const auto busiest_block =
        static_cast<double>(makespan_of(mixed_jobs(shapes, row.blocks), shapes));
    const auto side = static_cast<double>(row.n), batch = static_cast<double>(row.batch);
    CHECK(batch * side * side / (128.0 * 128.0 * 132.0) / busiest_block ==
          Approx(row.gain).margin(0.006));
  }
}

TEST_CASE("symmetric order: each shape has its tiles", "[emulated]") {
  struct Row {
    int64_t n, k, count;
    int sms;
    Tiles tiles;
  };
  const Tiles small = Tiles::kSmall, wide = Tiles::kSmallWide, medium = Tiles::kMedium,
              large = Tiles::kLarge;
  std::vector<Row> rows = {
      {128, 4096, 1, 124, small},  {512, 512, 8, 132, wide},     {768, 768, 6, 132, wide},
      {768, 3072, 6, 132, large},  {768, 768, 12, 132, large},   {1536, 1536, 1, 124, large},
      {1024, 1024, 8, 124, large}, {768, 2048, 128, 124, large}, {128, 4096, 256, 124, large}};
  // The fastest on an H200, whose 132 SMs were all free.
  for (const int64_t n : {256, 384, 512, 640, 768, 896, 1024, 1152, 1280})
    rows.push_back({n, n, 1, 132, small});
  for (const int sms : {124, 132}) {
    // Just larger than one round of squares.
    for (const int64_t n : {2000, 2048, 2176, 2304}) rows.push_back({n, n, 1, sms, medium});
    for (const int64_t n : {4096, 8192}) rows.push_back({n, n, 1, sms, large});
    rows.push_back({704, 704, 8, sms, medium});
    rows.push_back({1024, 1024, 4, sms, medium});
    rows.push_back({1024, 1024, 8, sms, large});
    rows.push_back({2048, 2048, 27, sms, large});
  }
  const auto chosen = [](int64_t n, int64_t k, int64_t count, int sms) {
    const Shapes shapes = {{n, k, count, slices_of_sm90(n, k)}};
    return tiles_of(shapes, mixed_jobs(shapes, sms), sms);
  };
  for (const Row& r : rows) {
    CAPTURE(r.n, r.k, r.count, r.sms);
    CHECK(chosen(r.n, r.k, r.count, r.sms) == r.tiles);
  }
  for (const int sms : {124, 132})
    for (const int64_t n : {1920, 2560}) CHECK(chosen(n, n, 1, sms) != medium);
  // What kAllButTwo is for: sizes of symmetric_test, on two blocks and on all SMs.
  for (const auto& [n, k, count] : {std::tuple<int64_t, int64_t, int64_t>(385, 40, 1),
                                    {390, 150, 1},
                                    {513, 42, 1},
                                    {600, 45, 4},
                                    {600, 330, 1},
                                    {370, 1100, 2}}) {
    CAPTURE(n, k, count);
    CHECK(chosen(n, k, count, 2) == large);
    CHECK(chosen(n, k, count, 132) != large);
  }
}

TEST_CASE("symmetric order: the cases for the large tiles of a GPU have pairs and slices",
          "[emulated]") {
  for (const int sms : {124, 132}) {
    int64_t in_pairs = 0, sliced = 0;
    for (const cuda_test::SymmetricCase& c : cuda_test::large_cases()) {
      const Shapes shapes = {{c.n, c.k, c.count, slices_of_sm90(c.n, c.k)}};
      in_pairs += mixed_jobs(shapes, sms, {.pairs = true}).jobs[0].kind == JobKind::kPair;
      sliced += shapes[0].slices > 1;
    }
    CHECK(in_pairs == 2);
    CHECK(sliced == 1);
  }
}

TEST_CASE("symmetric order: slices follow from the shape, are equal parts of stages and long",
          "[emulated]") {
  CHECK(slices_of(128, 2048) == 4);
  CHECK(slices_of(512, 1024) == 2);
  CHECK(slices_of(512, 511) == 1);
  CHECK(slices_of(4096, 16384) == 1);
  CHECK(slices_of(0, 16384) == 1);
  CHECK(slices_of_sm90(128, 2048) == 4);
  CHECK(slices_of_sm90(384, 1024) == 2);
  CHECK(slices_of_sm90(384, 1023) == 1);
  CHECK(slices_of_sm90(385, 16384) == 1);
  int64_t wrong = 0;
  for (int64_t n = 1; n <= 4096; n += 37) {
    for (int64_t k = 1; k <= 40000; k += 501) {
      const int slices = slices_of(n, k);
      wrong += slices < 1 || slices > 8 || (slices > 1 && k / slices < 512);
    }
  }
  for (int64_t k = 1024; k <= 20000; k += 7) {
    const int slices = slices_of_sm90(100, k), stages = stages_of(k);
    wrong += slice_begin(stages, 0, slices) != 0 || slice_begin(stages, slices, slices) != stages;
    for (int s = 0; s < slices; ++s) {
      const int depth = slice_begin(stages, s + 1, slices) - slice_begin(stages, s, slices);
      wrong += depth * kStageDepth < kShortestSlice90 || depth - stages / slices > 1;
    }
  }
  CHECK(wrong == 0);
}
