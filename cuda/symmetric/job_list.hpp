#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/sm90_tuning.hpp"
#include "backend/update_rules.hpp"

// Assigns tiles of symmetric results to thread blocks. The host builds a list of jobs once for a
// list of shapes, and kernels read it unchanged. This is plain C++ that is tested on the host.
//
// A cell is a square of kCell x kCell elements. In a symmetric n x n result, only the cells (row,
// col) with row <= col are computed. A cell off the diagonal is stored twice: unchanged and
// transposed. In a dense product, all cells are computed. The bits do not depend on the order of
// jobs or on their distribution, because an element is a single sum over the depth in a fixed
// order. `slices_of` divides this sum into slices, and depends only on the shape of one matrix.

namespace muonrt::cuda {

constexpr int kCell = 128;

MUONRT_HOST_DEVICE constexpr int64_t cells_of(int64_t n) { return (n + kCell - 1) / kCell; }

/// The results of one shape: `count` matrices of n x n elements. Each element is a sum of k terms,
/// which are added in `slices` parts.
struct SymmetricShape {
  int64_t n = 0, k = 0, count = 0;
  int32_t slices = 1;
  int64_t cols = 0;  // 0 if symmetric; otherwise the result of a dense product is n x cols
  auto operator<=>(const SymmetricShape&) const = default;
};

enum class JobKind : int16_t {
  kSquare,  // one cell
  kWide,    // two cells: (row, col) and (row, col + 1)
  kPair,    // like kWide; the other block of the cluster computes row ^ 1 and the same col
  kMedium,  // one and a half cells, in medium_jobs; col counts half cells
};

struct TileJob {
  int32_t shape;   // index in the list of shapes
  int32_t matrix;  // index in the batch
  int16_t row, col;
  JobKind kind;
  int16_t slice;  // index of the slice of the depth
};
static_assert(sizeof(TileJob) == 16);

/// Returns the number of columns of a job's tile. The tile has the rows of one cell.
MUONRT_HOST_DEVICE constexpr int cols_of(JobKind kind) {
  return kind == JobKind::kSquare   ? kCell
         : kind == JobKind::kMedium ? kCell + kCell / 2
                                    : 2 * kCell;
}
/// Returns the index of the first column of a job's tile.
MUONRT_HOST_DEVICE constexpr int first_col_of(const TileJob& job) {
  return job.col * (job.kind == JobKind::kMedium ? kCell / 2 : kCell);
}

/// How a square of a result is stored, if the result is divided into equal squares.
enum class Stored {
  kBoth,      // above the diagonal: stored unchanged and transposed
  kDiagonal,  // on the diagonal: the upper half is stored together with its transpose
  kNot,       // below the diagonal: it is the transpose of another square
  kStraight,  // in a dense result: stored unchanged
};
MUONRT_HOST_DEVICE constexpr Stored stored_as(int64_t row, int64_t col) {
  return row < col ? Stored::kBoth : row == col ? Stored::kDiagonal : Stored::kNot;
}

/// Depth of a stage of the kernels for sm_90a. Slices end at multiples of this depth.
constexpr int kStageDepth = 64;
MUONRT_HOST_DEVICE constexpr int stages_of(int64_t k) {
  return static_cast<int>((k + kStageDepth - 1) / kStageDepth);
}
/// Returns the index of a slice's first stage, if the depth consists of `stages` stages. Returns
/// `stages` if slice equals slices.
MUONRT_HOST_DEVICE constexpr int slice_begin(int stages, int slice, int slices) {
  return static_cast<int>(int64_t{stages} * slice / slices);
}

constexpr int64_t kShortestSlice = 512;
/// Returns the number of slices of the depth: 1, 2 or 4. Only narrow results with a large depth
/// have more than one slice, because they have too few tiles to occupy a GPU even if the tiles are
/// small.
/// @param tuned  Sm90Tuning::slices. If it is not 0, it is used for results of any width, but
///     limited to the number of stages.
int slices_of(int64_t n, int64_t k, int tuned = 0);

/// The jobs of a persistent grid: thread block b processes jobs [first[b], first[b + 1]) in order.
struct JobList {
  std::vector<TileJob> jobs;
  std::vector<int32_t> first;  // has blocks + 1 entries
};

/// Builds the mixed list (mixed_jobs.cpp), for shapes that are either all symmetric or all dense.
/// Pairs compute the squares of 2 x 2 cells that are off the diagonal, or all such squares of a
/// dense result. Both blocks of a cluster (blocks 2i and 2i + 1) process the same pairs, in the
/// same order and before all other jobs. The pairs are assigned to the smallest number of clusters
/// that can complete them before the planned end of the launch. The other blocks start with the
/// tiles on the diagonals of the same matrices, matrix by matrix. If all blocks computed diagonals
/// at the same time, they would exceed the memory bandwidth.
///
/// Pairs are cut into two wide jobs, and wide jobs into squares, if this makes the launch end
/// earlier. Among lists that end at the same time, the list with the most pairs is used. The time
/// of a job includes the time to read its operands. For squares off the diagonal, reading takes a
/// seventh longer than computing the products. Shapes with slices have only squares, because a
/// block that adds slices keeps two sums for each element.
/// @param blocks  number of blocks of the grid; even.
/// @param tuning  if `pairs` is false, all pairs are cut; `raster` orders the jobs.
JobList mixed_jobs(std::span<const SymmetricShape> shapes, int blocks,
                   const Sm90Tuning& tuning = {});

/// Builds a list of tiles of one and a half cells, which replaces the mixed list. The tiles extend
/// from the diagonal to the end of each row of cells, and are distributed to the blocks in turn,
/// deepest shapes first. As with squares, an SM can read the operands of such a tile while it
/// computes the products. The list needs fewer rounds than a list of wide tiles if a shape has
/// slightly more squares than fit into one round. Do not use it for shapes with slices.
/// @param raster  from Sm90Tuning.
JobList medium_jobs(std::span<const SymmetricShape> shapes, int blocks, int64_t raster = 0);

/// Returns the jobs of a list in the order in which blocks begin them, assuming that all jobs take
/// the same time: the first job of each block, then the second job of each block, and so on.
std::vector<TileJob> in_turn(const JobList& list);

/// Returns the largest total cost of a block of the list. `cost` returns the cost of a job.
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

/// Returns the cost of a job in the mixed list: its number of cells times its number of terms.
int64_t cost_of(const TileJob& job, std::span<const SymmetricShape> shapes);
/// Returns the largest total cost of a block in a list.
int64_t makespan_of(const JobList& list, std::span<const SymmetricShape> shapes);

}  // namespace muonrt::cuda
