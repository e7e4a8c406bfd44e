#include "command/bench_predict.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "cuda/symmetric/small_jobs.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kSms = 132, kCell = 128;
/// Of a product, and of a pass over elements, beside the work itself.
constexpr double kLaunchMs = 4.2e-3, kPassMs = 2e-3;
constexpr double kPeakOfSmall = 716;
constexpr double kCopyTb = 4.3;
/// TB/s of an elementwise pass, read and written.
constexpr double kPassTb = 4.0;
constexpr int64_t kL2Bytes = int64_t{50} << 20;

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// TFLOP/s of executed work at n = 1024, 2048, ..., 16384; one matrix, k = n; measured on an H200
/// (cuda/MEASUREMENTS.md).
using Rates = std::array<double, 5>;
constexpr Rates kVendorRates = {298, 679, 689, 713, 729}, kOwnRates = {346, 646, 661, 731, 724};
constexpr double kSm80Rate = 280;

double cube_of(double flops) { return std::cbrt(flops / 2); }

/// @param flops  of the dense product; a cube of as many has the size that is looked up.
double rate_of(const Rates& rates, double flops) {
  const double at = std::log2(cube_of(flops)) - 10;
  if (at <= 0) return flops / (kLaunchMs * 1e9 + flops / kPeakOfSmall);
  const auto low = std::min(static_cast<size_t>(at), rates.size() - 2);
  const double part = std::min(at - static_cast<double>(low), 1.0);
  return rates[low] + part * (rates[low + 1] - rates[low]);
}

// sm90.cu and sm90_small.cu: the very lists of jobs that a launch has, by the model that chooses
// between them (clocks_of in cuda/symmetric: an SM's port, L2, tensor cores at their peak). Beyond
// one round of 128 x 128 tiles tensor cores have the rate of a power-limited GPU. A launch costs
// what the vendor's does, less what a programmatic one saves.
constexpr double kClocksPerMs = 1.98e6, kEarlyMs = 2e-3;
constexpr double kPower = 1.61 / 1.98;  // of the clock, under long products
constexpr size_t kShapesOfLaunch = 6;
constexpr int64_t kMostCells = int64_t{1} << 19;  // of a list that is made; longer ones go on alike

std::vector<cuda::SymmetricShape> shortened(const std::vector<cuda::SymmetricShape>& shapes,
                                            int64_t times) {
  std::vector<cuda::SymmetricShape> out = shapes;
  for (cuda::SymmetricShape& s : out) s.count = ceil_of(s.count, times);
  return out;
}

int64_t cells_in(const std::vector<cuda::SymmetricShape>& shapes) {
  int64_t cells = 0;
  for (const cuda::SymmetricShape& s : shapes) {
    const int64_t side = ceil_of(s.n, kCell);
    cells += s.count * side * (side + 1) / 2;
  }
  return cells;
}

/// What a tile of 128 x 256 costs beside its products, in terms of its sums: the first loads, the
/// last products' end, rounding; clocks by tools/gpu/tile_clocks, 16 to a term.
constexpr double kTileTerms = 917.0 / 16, kTileTermsWithD = 1835.0 / 16;

/// Squares of a cell x terms of the busiest block of a persistent grid, and what tiles cost.
double longest_of(const cuda::JobList& list, std::span<const PredictedProduct> products) {
  return cuda::busiest(list, [&](const cuda::TileJob& job) {
    const PredictedProduct& p = products[static_cast<size_t>(job.shape)];
    const double beside = p.with_d ? kTileTermsWithD : kTileTerms;
    return static_cast<double>(cuda::cols_of(job.kind)) / kCell *
           (static_cast<double>(p.k) + beside);
  });
}

cuda::SymmetricShape shape_of(const PredictedProduct& p) {
  return {p.m, p.k, p.count, cuda::slices_of_sm90(p.m, p.k)};
}

/// One launch of `sm90`: the longer of what the tensor cores and what L2 and the ports take.
double own_ms(std::span<const PredictedProduct> products, int64_t blocks) {
  std::vector<cuda::SymmetricShape> all;
  for (const PredictedProduct& p : products) all.push_back(shape_of(p));
  const auto shapes = shortened(all, std::max<int64_t>(1, ceil_of(cells_in(all), kMostCells)));
  const auto grid = static_cast<int>(blocks);
  double flops = 0;
  for (const cuda::SymmetricShape& s : all)
    flops += 2.0 * static_cast<double>(s.n * s.n) * static_cast<double>(s.k * s.count);
  cuda::JobList list = cuda::mixed_jobs(shapes, grid);
  const Tiles tiles = cuda::tiles_of(shapes, list, grid);
  double clocks = 0, longest = 0;
  if (cuda::persistent(tiles)) {
    if (tiles == Tiles::kMedium) list = cuda::medium_jobs(shapes, grid);
    clocks = cuda::clocks_of(shapes, list, grid);
    // The rates looked up have what the tiles of a cube cost.
    const double cube = std::min(cube_of(flops), 16384.0);
    longest = longest_of(list, products) * cube / (cube + kTileTerms);
  } else {
    clocks = cuda::clocks_of(shapes, cuda::small_jobs(shapes, tiles), grid);
    for (const cuda::SymmetricShape& s : shapes)
      longest += static_cast<double>(s.count * s.n * (s.n + kCell / 2) / 2 * s.k) /
                 static_cast<double>(kCell * kCell * blocks);
  }
  const double by_clocks = kLaunchMs - kEarlyMs + clocks / kClocksPerMs;
  if (cells_in(all) <= blocks) return by_clocks;
  const double tensor =
      2 * longest * static_cast<double>(kCell * kCell * kSms) / rate_of(kOwnRates, flops) * 1e-9;
  return std::max(tensor, clocks / (kClocksPerMs * kPower)) * static_cast<double>(cells_in(all)) /
         static_cast<double>(cells_in(shapes));
}

/// As long as its operands come from memory and its result goes there, where L2 holds neither.
double memory_ms(const PredictedProduct& p) {
  const int64_t bytes = 2 * p.count * (p.k * (p.symmetric ? p.m : p.m + p.n) + p.m * p.n);
  return bytes > kL2Bytes ? static_cast<double>(bytes) / kPassTb * 1e-9 : 0;
}

/// One launch of `sm90` on all of them: as long as it takes, or as its operands from memory.
double launch_ms(std::span<const PredictedProduct> products, int64_t blocks) {
  double memory = 0;
  for (const PredictedProduct& p : products) memory += memory_ms(p);
  return std::max(memory, own_ms(products, blocks));
}

double sm80_gain(int64_t n, int64_t count) {
  const int64_t side = ceil_of(n, kCell), tiles = count * side * (side + 1) / 2;
  const auto waves = static_cast<double>(ceil_of(tiles, kSms));
  return static_cast<double>(count * n * n) / (waves * static_cast<double>(kSms * kCell * kCell));
}

}  // namespace

int64_t predicted_blocks(int reserved_sms) {
  return std::max<int64_t>(2, (kSms - reserved_sms) / 2 * 2);
}

std::optional<double> predicted_ms(const std::string& provider, const PredictedProduct& p,
                                   int64_t blocks) {
  const auto m = static_cast<double>(p.m), count = static_cast<double>(p.count);
  const double flops = 2 * m * static_cast<double>(p.n) * static_cast<double>(p.k) * count;
  const auto ms = [&](double rate) { return flops / rate * 1e-9; };
  const bool alone = provider == "cublaslt-best", vendor = alone || provider == "cublaslt";
  if (!vendor && provider != "sm80" && provider != "sm90") return std::nullopt;
  if (p.k == 0) return kPassMs;
  const double memory = memory_ms(p), dense = std::max(memory, ms(rate_of(kVendorRates, flops)));
  if (!p.symmetric || alone) return dense;
  if (provider == "sm80") return std::max(memory, ms(kSm80Rate * sm80_gain(p.m, p.count)));
  if (provider == "sm90") return launch_ms({&p, 1}, blocks);
  return dense + kPassMs + 2 * m * m * count / kCopyTb * 1e-9;
}

std::optional<double> predicted_ms(const std::string& provider,
                                   const std::vector<PredictedProduct>& products, int64_t blocks) {
  double sum = 0;
  for (const PredictedProduct& p : products) {
    const auto one = predicted_ms(provider, p, blocks);
    if (!one) return std::nullopt;
    sum += *one;
  }
  return sum;
}

std::optional<double> predicted_lockstep_ms(
    const std::string& provider, const std::vector<std::vector<PredictedProduct>>& iterations,
    int64_t blocks) {
  double sum = 0;
  if (provider != "sm90") {
    for (const auto& products : iterations) {
      const auto one = predicted_ms(provider, products, blocks);
      if (!one) return std::nullopt;
      sum += *one;
    }
    return sum;
  }
  std::vector<size_t> next(iterations.size(), 0);
  for (bool more = true; more;) {
    more = false;
    std::map<int32_t, std::vector<PredictedProduct>> turn;  // by slices
    for (size_t i = 0; i < iterations.size(); ++i) {
      for (; next[i] < iterations[i].size() && !iterations[i][next[i]].symmetric; ++next[i])
        sum += *predicted_ms(provider, iterations[i][next[i]], blocks);
      if (next[i] == iterations[i].size()) continue;
      const PredictedProduct& p = iterations[i][next[i]++];
      turn[shape_of(p).slices].push_back(p);
      more = true;
    }
    for (const auto& [slices, products] : turn)
      for (size_t begin = 0; begin < products.size(); begin += kShapesOfLaunch)
        sum += launch_ms(
            std::span(products).subspan(begin, std::min(kShapesOfLaunch, products.size() - begin)),
            blocks);
  }
  return sum;
}

double predicted_normalization_ms(int64_t elements, DType input, DType iterate) {
  // One pass measures, one divides; beside them what is cleared before and summed up between.
  constexpr double kLaunches = 5;
  const int64_t bytes = 2 * size_of(input) + size_of(iterate);
  return kLaunches * kPassMs + static_cast<double>(elements * bytes) / kPassTb * 1e-9;
}

std::vector<PredictedProduct> predicted_products(int64_t m, int64_t n, int64_t count, int steps,
                                                 const std::vector<int>* restarts) {
  std::vector<PredictedProduct> out;
  for (int begin = 0; begin < steps;) {
    int end = begin + 1;
    const auto rebuilt = [&](int i) {
      return !restarts || std::find(restarts->begin(), restarts->end(), i) != restarts->end();
    };
    while (end < steps && !rebuilt(end)) ++end;
    out.push_back({m, m, n, count, true});  // X X^T
    // Z of every step; W and R of all but the last, Q of all but the first, which takes no product.
    const int small = 1 + 4 * (end - begin - 1);
    out.insert(out.end(), static_cast<size_t>(small), {m, m, m, count, true, true});
    if (small > 1) out.push_back({m, m, 0, count, false});
    out.push_back({m, n, m, count, false});  // Q X
    begin = end;
  }
  return out;
}

}  // namespace muonrt::tool
