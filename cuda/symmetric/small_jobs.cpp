#include "cuda/symmetric/small_jobs.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "cuda/symmetric/triangle.hpp"

namespace muonrt::cuda {

namespace {

// A model of a launch's time, in clock cycles. A stage has a depth of 64 with 16-bit elements, and
// an SM computes 4,096 FLOP per clock. The constants are fitted to measurements on one H200 with
// tiles of each kind at 16 shapes (cuda/MEASUREMENTS.md). A block needs a minimum time for every
// stage, an SM reads at most 62 bytes per clock, and L2 delivers 38 bytes per clock to each SM. Two
// blocks of small tiles share an SM. The blocks of a cluster read 14 bytes per clock from each
// other (arXiv 2402.13499: 3.3 TB/s for all SMs).
constexpr double kStageClocksOfCell = 512, kPort = 62, kL2 = 38, kBetweenBlocks = 14;
constexpr double kLeastOfSmall = 600, kLeastOfLarge = 690;  // minimum clocks of a stage
constexpr double kClusterClocks = 1000;                     // barriers and sums in a cluster
constexpr double kStoreClocks = 0.3;  // time to store an element of a block's last job
constexpr double kRowBytes = 2.0 * kStageDepth;
constexpr int64_t kMaxSmallJobs = 1 << 16;
// Medium tiles are used only if the model predicts a clear advantage for them.
constexpr double kMediumSurcharge = 1.08;

const SymmetricShape& shape_of(const TileJob& job, std::span<const SymmetricShape> shapes) {
  return shapes[static_cast<size_t>(job.shape)];
}

/// The clocks of one block of small tiles, or of two blocks that share an SM.
struct BlockClocks {
  double least, loads, products, end;

  BlockClocks with(const BlockClocks& other) const {
    return {std::max(least, other.least), loads + other.loads, products + other.products,
            std::max(end, other.end)};
  }
  double total() const { return std::max({least, loads, products}) + end; }
};

/// Returns the size of a stage in bytes. It contains A's rows, and B's rows unless they are also
/// A's rows.
double stage_bytes(int rows, int cols, bool diagonal) {
  return kRowBytes * (rows + cols - (diagonal ? rows : 0));
}

}  // namespace

std::vector<TileJob> small_jobs(std::span<const SymmetricShape> shapes, Tiles tiles,
                                int64_t raster) {
  MUONRT_CHECK_INTERNAL(!persistent(tiles), "small jobs of large tiles");
  std::vector<TileJob> jobs;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    const int64_t side = (shape.n + kSmallCell - 1) / kSmallCell;
    for (int64_t m = 0; m < shape.count; ++m) {
      const size_t first = jobs.size();
      for (int64_t row = 0; row < side; ++row)
        for (int64_t col = row; col < side;) {
          const bool wide =
              tiles == Tiles::kSmallWide && shape.slices == 1 && col % 2 == 0 && col + 1 < side;
          jobs.push_back(tile_job(s, m, row, col, wide ? JobKind::kWide : JobKind::kSquare));
          col += wide ? 2 : 1;
        }
      order_in_bands(std::span(jobs).subspan(first), raster);
    }
  }
  return jobs;
}

double clocks_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms) {
  double longest = 0, bytes = 0;
  for (size_t b = 0; b + 1 < large.first.size(); ++b) {
    double clocks = 0, stores = 0;
    for (int32_t i = large.first[b]; i < large.first[b + 1]; ++i) {
      const TileJob& job = large.jobs[static_cast<size_t>(i)];
      const int cols = cols_of(job.kind), stages = stages_of(shape_of(job, shapes).k);
      const double in = stage_bytes(kCell, cols, job.row * kCell == first_col_of(job));
      clocks += stages * std::max({kStageClocksOfCell * cols / kCell, in / kPort, kLeastOfLarge});
      stores = kStoreClocks * cols * kCell;
      bytes += stages * (job.kind == JobKind::kPair ? in - kRowBytes * kCell : in);
    }
    longest = std::max(longest, clocks + stores);
  }
  return std::max(longest, bytes / (kL2 * sms));
}

double clocks_of(std::span<const SymmetricShape> shapes, const std::vector<TileJob>& small,
                 int sms) {
  struct Sm {
    double clocks = 0;
    std::optional<BlockClocks> single;  // a block without another block on its SM so far
  };
  // The model assigns blocks to the SMs in turn.
  std::vector<Sm> all(static_cast<size_t>(sms));
  double bytes = 0;
  size_t next = 0;
  for (const TileJob& job : small) {
    const SymmetricShape& shape = shape_of(job, shapes);
    const int cols = kSmallCell * (job.kind == JobKind::kWide ? 2 : 1);
    const double in = stage_bytes(kSmallCell, cols, job.row == job.col);
    const double stages = static_cast<double>(stages_of(shape.k)) / shape.slices;
    const double foreign = shape.slices > 1 ? 4.0 * kSmallCell * kSmallCell / shape.slices *
                                                      (shape.slices - 1) / kBetweenBlocks +
                                                  kClusterClocks
                                            : 0;
    const BlockClocks block{stages * kLeastOfSmall, stages * in / kPort,
                            stages * kStageClocksOfCell * cols / (4.0 * kSmallCell),
                            foreign + kStoreClocks * kSmallCell * cols / shape.slices};
    for (int slice = 0; slice < shape.slices; ++slice) {
      Sm& sm = all[next++ % all.size()];
      if (sm.single) {
        sm.clocks += sm.single->with(block).total();
        sm.single.reset();
      } else {
        sm.single = block;
      }
    }
    bytes += in * stages_of(shape.k);
  }
  double longest = 0;
  for (const Sm& sm : all)
    longest = std::max(longest, sm.clocks + (sm.single ? sm.single->total() : 0));
  return std::max(longest, bytes / (kL2 * sms));
}

Tiles tiles_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms) {
  int64_t cells = 0;
  for (const SymmetricShape& s : shapes) {
    if (s.slices != shapes[0].slices) return Tiles::kLarge;
    const int64_t side = (s.n + kSmallCell - 1) / kSmallCell;
    cells += s.count * side * (side + 1) / 2;
  }
  if (cells > kMaxSmallJobs) return Tiles::kLarge;
  Tiles best = Tiles::kLarge;
  double least = clocks_of(shapes, large, sms);
  const auto offer = [&](Tiles tiles, double clocks) {
    if (clocks >= least) return;
    best = tiles;
    least = clocks;
  };
  if (shapes[0].slices == 1) {
    offer(Tiles::kMedium, kMediumSurcharge * clocks_of(shapes, medium_jobs(shapes, sms), sms));
    offer(Tiles::kSmallWide, clocks_of(shapes, small_jobs(shapes, Tiles::kSmallWide), sms));
  }
  offer(Tiles::kSmall, clocks_of(shapes, small_jobs(shapes, Tiles::kSmall), sms));
  return best;
}

}  // namespace muonrt::cuda
