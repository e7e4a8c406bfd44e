// Runs ranks as threads, with the C++17 classes of muonrt.hpp. The program trains a matrix on 1
// rank. Then it trains the same matrix on 3 ranks, saves a checkpoint after half of the steps, and
// continues on 2 ranks. The weights must be bitwise identical.
// Usage: threads FOLDER
#include <cstdio>
#include <cstdlib>
#include <muonrt/muonrt.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kRows = 10, kCols = 6;
const int64_t kShape[] = {kRows, kCols};

// Returns the rows [begin, end) of the matrix that `rank` holds. Ranks hold rows in rank order.
muonrt_run_t rows_of(const muonrt_layout_t& layout, int32_t ranks, int32_t rank) {
  muonrt_run_t rows = {0, 0};
  int64_t count = 0;
  muonrt::check(muonrt_layout_get_runs(&rows, 1, &count, &layout, ranks, 2, kShape, rank, 0));
  return rows;
}

// Runs steps `first` to `last` on one rank, with the rank's rows of `weights`.
void train(muonrt::Comm comm, std::vector<float>& weights, int first, int last,
           const std::string& folder) {
  muonrt_placement_t by_rows = {MUONRT_PLACEMENT_SHARD, 0, 0};
  muonrt_layout_t layout = muonrt::layout();
  layout.placements = &by_rows;
  const auto [begin, end] = rows_of(layout, comm.size(), comm.rank());

  std::vector<float> gradient(static_cast<size_t>((end - begin) * kCols));
  muonrt_param_t param = muonrt::param();
  param.name = "w";
  param.ndim = 2;
  param.shape = kShape;
  param.layout = &layout;
  param.data = weights.data() + begin * kCols;
  param.grad = gradient.data();
  muonrt::Optimizer optimizer(comm, muonrt::options(), {muonrt::muon_group()}, {param});
  if (first > 0) optimizer.load(folder);
  for (int step = first; step < last; ++step) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto element = begin * kCols + static_cast<int64_t>(i);
      gradient[i] = static_cast<float>((element + 1) * (element + step) % 17) - 8.0f;
    }
    optimizer.step(3e-4);
  }
  optimizer.save(folder);
}

// Runs `train` on ranks that are threads. Throws if any rank throws.
std::vector<float> train_on(int32_t ranks, int first, int last, const std::string& folder) {
  std::vector<float> weights(kRows * kCols);
  muonrt::ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        train(group.comm(rank), weights, first, last, folder);
      } catch (const muonrt::Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), error.what());
        std::exit(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return weights;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  const auto one = train_on(1, 0, 10, folder + "/one");
  train_on(3, 0, 5, folder + "/three");
  const bool same = train_on(2, 5, 10, folder + "/three") == one;
  std::puts(same ? "bitwise identical on 1 rank and on 3 and 2" : "different");
  return same ? 0 : 1;
}
