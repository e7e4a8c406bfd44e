// Tests the order of jobs in the lists of symmetric products: how early a list ends, how many pairs
// it contains, and which tiles and slices are used for a shape.

#include <catch2/catch.hpp>
#include <random>

#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"

using namespace muonrt::cuda;
using muonrt::Tiles;

namespace {

using Shapes = std::vector<SymmetricShape>;

int64_t cells_of_matrix(const SymmetricShape& s) { return cells_of(s.n) * (cells_of(s.n) + 1) / 2; }

/// Returns a lower bound on the end of any list, in cells x stages.
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

/// Returns, for each matrix, the mean start time of the jobs of one kind, divided by the total
/// time.
std::vector<double> mean_times(const Shapes& shapes, int blocks, JobKind kind) {
  const JobList list = mixed_jobs(shapes, blocks, {.pairs = true});
  const auto all =
      static_cast<double>(busiest(list, [&](const TileJob& job) { return time_of(job, shapes); }));
  std::vector<double> sum(static_cast<size_t>(shapes[0].count)), jobs = sum;
  for (size_t b = 0; b + 1 < list.first.size(); ++b) {
    int64_t now = 0;
    for (int32_t i = list.first[b]; i < list.first[b + 1]; ++i) {
      const TileJob& job = list.jobs[static_cast<size_t>(i)];
      const auto m = static_cast<size_t>(job.matrix);
      if (job.kind == kind) sum[m] += static_cast<double>(now) / all, ++jobs[m];
      now += time_of(job, shapes);
    }
  }
  for (size_t m = 0; m < sum.size(); ++m) sum[m] /= jobs[m];
  return sum;
}

}  // namespace

TEST_CASE("symmetric order: no list ends much later than its work allows", "[emulated]") {
  std::mt19937 random(11);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 300; ++i) {
    Shapes shapes;
    int64_t deepest = 0;
    for (int64_t left = 1 + below(5); left > 0; --left) {
      shapes.push_back({1 + below(random() % 2 ? 6000 : 1500), 1 + below(random() % 2 ? 6400 : 300),
                        1 + below(random() % 2 ? 3 : 40)});
      deepest = std::max<int64_t>(deepest, stages_of(shapes.back().k));
    }
    const int blocks = 2 * static_cast<int>(1 + below(66));
    CAPTURE(i, blocks);
    // The allowed time is the bound of longest-first scheduling for jobs of two cells. A margin is
    // added, because square jobs take longer on an SM.
    const int64_t least = least_makespan(shapes, blocks);
    CHECK(makespan(shapes, blocks) <= least + least / 24 + 2 * deepest);
  }
  // One matrix has a large depth, and many other matrices have a smaller depth. If the deep matrix
  // had wide tiles, a block with one of these tiles would have too much work.
  for (const int blocks : {124, 132})
    for (const Shapes& shapes : {Shapes{{1024, 16384, 1}, {2048, 2048, 8}},
                                 {{2048, 18432, 1}, {768, 2048, 64}},
                                 {{1536, 9216, 1}, {1536, 1536, 12}}}) {
      CAPTURE(blocks, shapes[0].n, shapes[0].k);
      const int64_t together = makespan(shapes, blocks);
      CHECK(together < makespan({shapes[0]}, blocks) + makespan({shapes[1]}, blocks));
      CHECK(static_cast<double>(together) <
            1.15 * static_cast<double>(least_makespan(shapes, blocks)));
    }
}

TEST_CASE("symmetric order: the mixed list is as short as predicted", "[emulated]") {
  // The gain is the speed relative to a dense product with the same rate on 132 SMs. To compute the
  // gain, the number of cells is divided by the number of cells of the busiest block. If 128 x 128
  // tiles take less time, the row contains the gain with 128 x 128 tiles. Source: reference
  // kernels, 4.3, "mixed list".
  struct Row {
    int64_t n, batch;
    int blocks;
    double gain;
  };
  for (const Row& row : {Row{2048, 1, 132, 0.97},
                         {4096, 1, 132, 1.94},
                         {16384, 1, 132, 1.97},
                         {1024, 8, 132, 1.29},
                         {768, 128, 132, 1.66},
                         {2048, 128, 132, 1.88},
                         // In these rows, 8 SMs are reserved for communication.
                         {4096, 1, 124, 1.55},
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

TEST_CASE(
    "symmetric order: pairs are cut only if the list becomes shorter, and narrow results have none",
    "[emulated]") {
  const auto pairs = [](const Shapes& shapes, int blocks, const muonrt::Sm90Tuning& tuning) {
    const JobList list = mixed_jobs(shapes, blocks, tuning);
    return std::count_if(list.jobs.begin(), list.jobs.end(),
                         [](const TileJob& job) { return job.kind == JobKind::kPair; }) /
           2;
  };
  // A side has s = n / 256 squares. Pairs compute all s (s - 1) / 2 squares above the diagonal.
  struct Row {
    int64_t n, batch;
    int blocks;
    int64_t pairs;
  };
  for (const Row& row : {Row{4096, 1, 124, 120},
                         {8192, 1, 132, 496},
                         {1024, 8, 132, 48},
                         {2048, 216, 124, 216 * 28},
                         // If all squares fit into about one round, squares take less time than
                         // pairs.
                         {1536, 1, 132, 0}}) {
    CAPTURE(row.n, row.batch, row.blocks);
    CHECK(pairs({{row.n, 4096, row.batch}}, row.blocks, {.pairs = true}) == row.pairs);
  }
  CHECK(pairs({{1280, 5120, 64}}, 132, {}) == 0);
  CHECK(pairs({{1281, 5120, 64}}, 132, {}) > 0);
  CHECK(pairs({{768, 2048, 128}, {1280, 1280, 8}}, 132, {}) == 0);
  CHECK(pairs({{768, 2048, 128}, {2048, 2048, 8}}, 132, {}) > 0);
}

TEST_CASE("symmetric order: jobs on a diagonal are computed next to the pairs of their matrix",
          "[emulated]") {
  // For each product that they compute, jobs on the diagonal read twice as many bytes as pairs. If
  // all blocks computed diagonals at the same time, they would exceed the memory bandwidth.
  for (const int blocks : {124, 132})
    for (const auto& [n, batch] : {std::pair{2048, 216}, {4096, 40}, {1280, 200}}) {
      const Shapes shapes = {{n, 7168, batch}};
      const auto pairs = mean_times(shapes, blocks, JobKind::kPair),
                 diagonals = mean_times(shapes, blocks, JobKind::kWide);
      for (size_t m = 0; m < pairs.size(); ++m) {
        CAPTURE(blocks, n, batch, m);
        REQUIRE(std::abs(pairs[m] - diagonals[m]) < 0.125);
      }
    }
}

TEST_CASE("symmetric order: a band of tiles is ordered column by column", "[emulated]") {
  const Shapes shapes = {{600, 64, 2}};
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
  CHECK(places(medium_jobs(shapes, 1, 2).jobs) == Places{{0, 0}, {1, 2}, {0, 3}, {1, 5}, {0, 6}});
  // Returns the row and column at which each of the first four pairs begins.
  const auto pairs = [&](int64_t raster) {
    Places out;
    for (const TileJob& job : mixed_jobs(Shapes{{1536, 64, 1}}, 2, {.raster = raster}).jobs)
      if (job.kind == JobKind::kPair && job.row % 2 == 0 && out.size() < 4)
        out.emplace_back(job.row, job.col);
    return out;
  };
  CHECK(pairs(1) == Places{{0, 2}, {0, 4}, {0, 6}, {0, 8}});
  CHECK(pairs(2) == Places{{0, 2}, {0, 4}, {2, 4}, {0, 6}});
}

TEST_CASE("symmetric order: each shape has the expected tiles", "[emulated]") {
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
  // On an H200 with all 132 SMs free, these tiles are the fastest.
  for (const int64_t n : {256, 640, 1280}) rows.push_back({n, n, 1, 132, small});
  for (const int sms : {124, 132}) {
    rows.push_back({1920, 1920, 1, sms, large});
    // These sizes are slightly larger than one round of squares.
    for (const int64_t n : {2000, 2304}) rows.push_back({n, n, 1, sms, medium});
    for (const int64_t n : {4096, 8192}) rows.push_back({n, n, 1, sms, large});
    rows.push_back({1024, 1024, 4, sms, medium});
    rows.push_back({2048, 2048, 27, sms, large});
  }
  const auto chosen = [](int64_t n, int64_t k, int64_t count, int sms) {
    const Shapes shapes = {{n, k, count, slices_of(n, k)}};
    return tiles_of(shapes, mixed_jobs(shapes, sms), sms);
  };
  for (const Row& r : rows) {
    CAPTURE(r.n, r.k, r.count, r.sms);
    CHECK(chosen(r.n, r.k, r.count, r.sms) == r.tiles);
  }
  // The sizes of symmetric_test use large tiles on two blocks, and other tiles on all SMs. For this
  // reason symmetric_test uses kAllButTwo.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>(385, 40), {390, 20}, {600, 330}}) {
    CAPTURE(n, k);
    CHECK(chosen(n, k, 1, 2) == large);
    CHECK(chosen(n, k, 1, 132) != large);
  }
}

TEST_CASE("symmetric order: the cases for the large tiles of a GPU have pairs and slices",
          "[emulated]") {
  for (const int sms : {124, 132}) {
    int64_t in_pairs = 0, sliced = 0;
    for (const cuda_test::SymmetricCase& c : cuda_test::large_cases()) {
      const Shapes shapes = {{c.n, c.k, c.count, slices_of(c.n, c.k)}};
      in_pairs += mixed_jobs(shapes, sms, {.pairs = true}).jobs[0].kind == JobKind::kPair;
      sliced += shapes[0].slices > 1;
    }
    CHECK(in_pairs == 2);
    CHECK(sliced == 1);
  }
}

TEST_CASE(
    "symmetric order: slices depend only on the shape, have equal numbers of stages, and are long",
    "[emulated]") {
  CHECK(slices_of(128, 2048) == 4);
  CHECK(slices_of(384, 1024) == 2);
  CHECK(slices_of(384, 1023) == 1);
  CHECK(slices_of(385, 16384) == 1);
  int64_t wrong = 0;
  for (int64_t k = 1024; k <= 20000; k += 7) {
    const int slices = slices_of(100, k), stages = stages_of(k);
    wrong += slice_begin(stages, 0, slices) != 0 || slice_begin(stages, slices, slices) != stages;
    for (int s = 0; s < slices; ++s) {
      const int depth = slice_begin(stages, s + 1, slices) - slice_begin(stages, s, slices);
      wrong += depth * kStageDepth < kShortestSlice || depth - stages / slices > 1;
    }
  }
  CHECK(wrong == 0);
}
