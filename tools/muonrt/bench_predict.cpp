#include "muonrt/bench_predict.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace muonrt::tool {

namespace {

constexpr int64_t kSms = 132, kCell = 128;
constexpr double kLaunchMs = 3.2e-3, kMirrorMs = 2e-3, kPeakOfSmall = 716, kCopyTb = 4.3;

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// TFLOP/s of executed work at n = 1024, 2048, ..., 16384; one matrix, k = n.
using Rates = std::array<double, 5>;
constexpr Rates kVendorRates = {346, 600, 750, 785, 780}, kOwnRates = {346, 618, 678, 742, 736};
constexpr double kSm80Rate = 415;

/// @param flops  of the dense product; a cube of as many has the size that is looked up.
double rate_of(const Rates& rates, double flops) {
  const double at = std::log2(std::cbrt(flops / 2)) - 10;
  if (at <= 0) return flops / (kLaunchMs * 1e9 + flops / kPeakOfSmall);
  const auto low = std::min(static_cast<size_t>(at), rates.size() - 2);
  const double part = std::min(at - static_cast<double>(low), 1.0);
  return rates[low] + part * (rates[low + 1] - rates[low]);
}

/// Longest block in cells, where `wide` jobs of two cells and then `squares` go to whoever has
/// least.
int64_t longest(int64_t wide, int64_t squares, int64_t blocks) {
  const int64_t rounds = wide / blocks, more = wide % blocks, room = blocks - more;
  if (squares > 2 * room) return ceil_of(2 * wide + squares, blocks);
  return std::max(2 * (rounds + (more > 0)), 2 * rounds + ceil_of(squares, room));
}

// What fits into one round of 128 x 128 tiles is predicted by the clocks of a block: as
// cuda/symmetric/small_jobs.cpp counts them, with the same constants and their sources. A launch
// costs what the vendor's does, less what a programmatic one saves: 2 to 4 us by reference kernels,
// 7.2, of which one is counted here. Stores that nothing hides take 48 bytes a clock of an SM: 32
// to 64 by 4.3. Rectangular depths of the vendor are a cube's of equal work: too fast where n is
// small.
constexpr double kClocksPerMs = 1.83e6, kEarlyMs = 1e-3;
constexpr double kPort = 56, kL2OfSm = 38, kBetweenBlocks = 14, kMeetings = 1000;
constexpr double kStoreClocks = 4.0 / 48;  // an element, straight and mirrored
constexpr int64_t kStage = 64, kSmallCell = 64;

/// Clocks of `tiles` equal blocks that take in `rows` rows of a stage; L2 gives `all_rows`.
/// @param stored  elements of a block.
double clocks_of(int64_t tiles, int64_t rows, double all_rows, double stages, double stored,
                 int64_t sms) {
  const double port = static_cast<double>(ceil_of(tiles, sms) * rows * 2 * kStage) / kPort;
  const double l2 = all_rows * 2 * kStage / (kL2OfSm * static_cast<double>(sms));
  return stages * std::max(port, l2) + kStoreClocks * stored;
}

/// The shortest of the three kinds of tiles, or of clusters with a slice of the depth each.
double small_ms(int64_t n, int64_t k, int64_t count, int64_t sms) {
  const int64_t side = ceil_of(n, kCell), half = ceil_of(n, kSmallCell);
  const auto stages = static_cast<double>(ceil_of(k, kStage));
  // Of a triangle's tiles those on the diagonal read their rows once.
  const int64_t cells = count * side * (side + 1) / 2, squares = count * half * (half + 1) / 2;
  const int64_t wide = count * (half / 2) * (half / 2);
  const int64_t single = squares - 2 * wide;  // of those beside the wide ones
  const int64_t slices = n > 384 || k < 1024 ? 1 : k < 2048 ? 2 : 4;
  const double foreign = slices > 1 ? kMeetings + 4.0 * kSmallCell * kSmallCell *
                                                      static_cast<double>(slices - 1) /
                                                      static_cast<double>(slices) / kBetweenBlocks
                                    : 0;
  const auto rows = [&](int64_t all, int64_t once) { return static_cast<double>(all - once); };
  constexpr double kSquare = kSmallCell * kSmallCell;
  double clocks = clocks_of(cells, 2 * kCell, rows(2 * kCell * cells, kCell * count * side), stages,
                            4 * kSquare, sms);
  clocks = std::min(clocks, clocks_of(slices * squares, 2 * kSmallCell,
                                      rows(2 * kSmallCell * squares, kSmallCell * count * half) *
                                          static_cast<double>(slices),
                                      stages / static_cast<double>(slices),
                                      kSquare / static_cast<double>(slices), sms) +
                                foreign);
  if (slices == 1)
    clocks = std::min(
        clocks, clocks_of(wide + single, 3 * kSmallCell,
                          rows(kSmallCell * (3 * wide + 2 * single), kSmallCell * count * half),
                          stages, 2 * kSquare, sms));
  return kLaunchMs - kEarlyMs + clocks / kClocksPerMs;
}

double sm80_gain(int64_t n, int64_t count) {
  const int64_t side = ceil_of(n, kCell), tiles = count * side * (side + 1) / 2;
  const auto waves = static_cast<double>(ceil_of(tiles, kSms));
  return static_cast<double>(count * n * n) / (waves * static_cast<double>(kSms * kCell * kCell));
}

/// predicted_gain, of tiles of a cell and a half: as long as the tensor cores take, or L2, which no
/// pairs relieve.
double medium_gain(int64_t n, int64_t count, int64_t blocks) {
  const int64_t side = ceil_of(n, kCell), halves = ceil_of(n, kSmallCell);
  int64_t jobs = 0;
  for (int64_t row = 0; row < side; ++row) jobs += ceil_of(halves - 2 * row, 3);
  const auto rows = static_cast<double>(count * ((2 * kCell + kSmallCell) * jobs - kCell * side));
  constexpr double kStageClocksOfCell = 512;
  const double l2 =
      rows * 2 * kStage / (kL2OfSm * static_cast<double>(blocks)) / kStageClocksOfCell;
  const double cells = std::max(1.5 * static_cast<double>(ceil_of(count * jobs, blocks)), l2);
  return static_cast<double>(count * n * n) / (cells * static_cast<double>(kSms * kCell * kCell));
}

/// Of the tiles that are taken: of a cell and a half where those are clearly better.
double own_gain(int64_t n, int64_t count, int64_t blocks) {
  constexpr double kClearly = 1.08;
  const double mixed = predicted_gain(n, count, blocks), medium = medium_gain(n, count, blocks);
  return medium > kClearly * mixed ? medium : mixed;
}

}  // namespace

int64_t predicted_blocks(int reserved_sms) {
  return std::max<int64_t>(2, (kSms - reserved_sms) / 2 * 2);
}

double predicted_gain(int64_t n, int64_t count, int64_t blocks) {
  const int64_t side = ceil_of(n, kCell), whole = side / 2, odd = side % 2;
  const int64_t pairs = count * whole * (whole - 1) / 2, clusters = blocks / 2;
  const int64_t wide = count * whole + 2 * (pairs % clusters);
  const int64_t squares = count * (whole + odd * (2 * whole + 1));
  const int64_t broken = wide % blocks;  // wide jobs that fill no round, as two squares each
  const int64_t cells =
      2 * (pairs / clusters) + std::min(longest(wide, squares, blocks),
                                        longest(wide - broken, squares + 2 * broken, blocks));
  return static_cast<double>(count * n * n) / static_cast<double>(cells * kSms * kCell * kCell);
}

std::optional<double> predicted_ms(const std::string& provider, const PredictedProduct& p,
                                   int64_t blocks) {
  const auto m = static_cast<double>(p.m), count = static_cast<double>(p.count);
  const double flops = 2 * m * static_cast<double>(p.n) * static_cast<double>(p.k) * count;
  const auto ms = [&](double rate) { return flops / rate * 1e-9; };
  const bool alone = provider == "cublaslt-dense", vendor = alone || provider == "cublaslt";
  if (!vendor && provider != "sm80" && provider != "sm90") return std::nullopt;
  const double dense = ms(rate_of(kVendorRates, flops));
  if (!p.symmetric || alone) return dense;
  if (provider == "sm80") return ms(kSm80Rate * sm80_gain(p.m, p.count));
  const int64_t side = ceil_of(p.m, kCell);
  if (provider == "sm90" && p.count * side * (side + 1) / 2 <= blocks)
    return small_ms(p.m, p.k, p.count, blocks);
  if (provider == "sm90") return ms(rate_of(kOwnRates, flops) * own_gain(p.m, p.count, blocks));
  return dense + kMirrorMs + 2 * m * m * count / kCopyTb * 1e-9;
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
    // Z of every step; Q, W and R of all but the first.
    const int small = 1 + 4 * (end - begin - 1);
    out.insert(out.end(), static_cast<size_t>(small), {m, m, m, count, true});
    out.push_back({m, n, m, count, false});  // Q X
    begin = end;
  }
  return out;
}

}  // namespace muonrt::tool
