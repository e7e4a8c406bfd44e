#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/sm90_tuning.hpp"
#include "backend/update_rules.hpp"

// Assigns tiles of symmetric results to thread blocks. The host builds a list of jobs once for a
// list of shapes, and kernels read it unchanged. This is plain C++ that is tested on the host.
//
// Only the upper triangle of a symmetric n x n result is computed, as kCell x kCell cells (row,
// col) with row <= col. A cell off the diagonal is stored twice, straight and mirrored. All cells
// of the result of a dense product are computed. The order of jobs and their distribution change no
// bit: an element is a single sum over the depth in a fixed order. `slices_of` cuts this sum into
// slices, and depends only on the shape of one matrix.

namespace muonrt::cuda {

constexpr int kCell = 128;

MUONRT_HOST_DEVICE constexpr int64_t cells_of(int64_t n) { return (n + kCell - 1) / kCell; }

/// The results of one shape: `count` matrices n x n. Each element is a sum of k terms in `slices`
/// parts.
struct SymmetricShape {
  int64_t n = 0, k = 0, count = 0;
  int32_t slices = 1;
  int64_t cols = 0;  // 0: symmetric; otherwise the result of a dense product is n x cols
  auto operator<=>(const SymmetricShape&) const = default;
};

enum class JobKind : int16_t {
  kSquare,  // one cell
  kWide,    // two cells, (row, col) and (row, col + 1)
  kPair,    // as kWide; the other block of the cluster has row ^ 1 and the same col
  kMedium,  // a cell and a half, in medium_jobs; col counts half cells
};

struct TileJob {
  int32_t shape;   // index in the list of shapes
  int32_t matrix;  // index in the batch
  int16_t row, col;
  JobKind kind;
  int16_t slice;  // index of the slice of the depth
};
static_assert(sizeof(TileJob) == 16);

/// Return the number of columns of a job's tile, and the index of its first column. The tile has
/// the rows of one cell.
MUONRT_HOST_DEVICE constexpr int cols_of(JobKind kind) {
  return kind == JobKind::kSquare   ? kCell
         : kind == JobKind::kMedium ? kCell + kCell / 2
                                    : 2 * kCell;
}
MUONRT_HOST_DEVICE constexpr int first_col_of(const TileJob& job) {
  return job.col * (job.kind == JobKind::kMedium ? kCell / 2 : kCell);
}

/// How a square of a result is stored, if the result is divided into equal squares.
enum class Stored {
  kBoth,      // above the diagonal: straight and mirrored
  kDiagonal,  // on the diagonal: its upper half twice, in one square
  kNot,       // below the diagonal: it is the mirror of another square
  kStraight,  // in a dense result
};
MUONRT_HOST_DEVICE constexpr Stored stored_as(int64_t row, int64_t col) {
  return row < col ? Stored::kBoth : row == col ? Stored::kDiagonal : Stored::kNot;
}

/// Depth of a stage of the kernels for sm_90a. Slices end at multiples of this depth.
constexpr int kStageDepth = 64;
MUONRT_HOST_DEVICE constexpr int stages_of(int64_t k) {
  return static_cast<int>((k + kStageDepth - 1) / kStageDepth);
}
/// Returns the first of the `stages` along the depth that belongs to a slice. Returns `stages` if
/// slice = slices.
MUONRT_HOST_DEVICE constexpr int slice_begin(int stages, int slice, int slices) {
  return static_cast<int>(int64_t{stages} * slice / slices);
}

constexpr int64_t kShortestSlice = 512;
/// Returns the number of slices of the depth: 1, 2 or 4. Only narrow results of a large depth have
/// more than one slice, because they have too few tiles for a GPU even if the tiles are small. In a
/// batch, the loss from using smaller tiles is small.
/// @param tuned  the slices of Sm90Tuning, used for results of any width, but at most the number of
///     stages.
int slices_of(int64_t n, int64_t k, int tuned = 0);

/// The jobs of a persistent grid: thread block b processes jobs [first[b], first[b + 1]) in order.
struct JobList {
  std::vector<TileJob> jobs;
  std::vector<int32_t> first;  // has blocks + 1 entries
};

/// Builds the mixed list (mixed_jobs.cpp), either of symmetric or of dense shapes. Squares of 2 x 2
/// cells off the diagonal, and all such squares of a dense result, are pairs. A
/// cluster (blocks 2i and 2i + 1) processes the same pairs in both of its blocks, in the same order
/// and before all other jobs. The pairs are given to as few clusters as can complete them in time.
/// The other blocks start with the tiles on the diagonals, matrix by matrix, while the clusters
/// compute the pairs of the same matrices. If all blocks computed diagonals at the same time, they
/// would exceed the memory bandwidth.
///
/// If the list then ends earlier, pairs are cut into two wide jobs, and wide jobs into squares.
/// Among lists that end at the same time, the list with the most pairs is used. The time of a job
/// includes reading its operands: squares off the diagonal need a seventh more time for it than for
/// their products. Shapes with slices have only squares, because the block that adds the slices
/// keeps two sums of each element.
/// @param blocks  number of blocks of the grid; even.
/// @param tuning  `pairs` = false cuts all pairs; `raster` orders the jobs.
JobList mixed_jobs(std::span<const SymmetricShape> shapes, int blocks,
                   const Sm90Tuning& tuning = {});

/// Builds a list of tiles of a cell and a half, instead of the mixed list. The tiles go from the
/// diagonal to the end of each row of cells, and are distributed to the blocks in turn, deepest
/// shapes first. Like squares, they do not need to read more bytes than an SM can read while it
/// multiplies. They need fewer rounds than wide tiles if a shape is slightly larger than one round
/// of squares. Do not use this list for shapes with slices.
/// @param raster  from Sm90Tuning.
JobList medium_jobs(std::span<const SymmetricShape> shapes, int blocks, int64_t raster = 0);

/// Returns the jobs of a list in the order in which blocks begin them if all take the same time:
/// first the first job of each block, then the second jobs.
std::vector<TileJob> in_turn(const JobList& list);

/// Returns the largest cost of a block of the list, if `cost` returns the cost of a job.
template <class Cost>
auto busiest(const JobList& list, const Cost& cost) {
  decltype(cost(list.jobs[0])) most = 0;
  for (size_t b = 0; b + 1 < list.first.size(); ++b) {
    decltype(most) sum = 0;
    for (auto i = static_cast<size_t>(list.first[b]); i < static_cast<size_t>(list.first[b + 1]);
         ++i)
      sum += cost(list.jobs[i]);
    most = sum > most ? sum : most;
  }
  return most;
}

/// Return the number of products of a job of the mixed list, in cells x terms, and the largest
/// number of products of a block of a list.
int64_t cost_of(const TileJob& job, std::span<const SymmetricShape> shapes);
int64_t makespan_of(const JobList& list, std::span<const SymmetricShape> shapes);

}  // namespace muonrt::cuda
