#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/sm90_tuning.hpp"
#include "backend/update_rules.hpp"

// Which block computes what of symmetric results: built on the host once for a list of shapes, read
// by kernels as it lies. Plain C++, tested on the host.
//
// A result of n x n is a triangle of cells of kCell x kCell, (row, col) with row <= col. A cell off
// the diagonal is stored twice from the same registers, straight and mirrored. The order of jobs
// and who takes them changes no bit: an element is one sum over the depth in a fixed order, cut
// into slices by `slices_of`, which looks at the shape of one matrix alone.

namespace muonrt::cuda {

constexpr int kCell = 128;

MUONRT_HOST_DEVICE constexpr int64_t cells_of(int64_t n) { return (n + kCell - 1) / kCell; }

/// Results of one shape: `count` matrices n x n, each a sum of k terms in `slices` parts.
struct SymmetricShape {
  int64_t n = 0, k = 0, count = 0;
  int32_t slices = 1;  // looked at by the lists for sm_90a
  auto operator<=>(const SymmetricShape&) const = default;
};

enum class JobKind : int16_t {
  kSquare,  // one cell
  kWide,    // two cells, (row, col) and (row, col + 1)
  kPair,    // as kWide, beside the other block of a cluster, which has row ^ 1 and the same col
  kMedium,  // a cell and a half, of medium_jobs: col counts half cells
};

struct TileJob {
  int32_t shape;   // in the list
  int32_t matrix;  // of the batch
  int16_t row, col;
  JobKind kind;
  int16_t slice;  // of the depth
};
static_assert(sizeof(TileJob) == 16);

/// Columns of a job's tile, whose rows are one cell's; and the first of them.
MUONRT_HOST_DEVICE constexpr int cols_of(JobKind kind) {
  return kind == JobKind::kSquare   ? kCell
         : kind == JobKind::kMedium ? kCell + kCell / 2
                                    : 2 * kCell;
}
MUONRT_HOST_DEVICE constexpr int first_col_of(const TileJob& job) {
  return job.col * (job.kind == JobKind::kMedium ? kCell / 2 : kCell);
}

/// What a square of a result, on a grid of such squares, is stored as.
enum class Stored {
  kBoth,      // above the diagonal: straight and mirrored
  kDiagonal,  // on it: its upper half twice, into one square
  kNot,       // below: it is some other one's mirror
};
MUONRT_HOST_DEVICE constexpr Stored stored_as(int64_t row, int64_t col) {
  return row < col ? Stored::kBoth : row == col ? Stored::kDiagonal : Stored::kNot;
}

/// Into how many slices the depth of a small result is cut on sm_80, so that one matrix has work
/// for more blocks; 1 for all others.
int slices_of(int64_t n, int64_t k);

/// Depth of a stage of the kernels for sm_90a; their slices end at multiples of it.
constexpr int kStageDepth = 64;
MUONRT_HOST_DEVICE constexpr int stages_of(int64_t k) {
  return static_cast<int>((k + kStageDepth - 1) / kStageDepth);
}
/// The first of `stages` along the depth that belongs to a slice; that of slice `slices` is the
/// end.
MUONRT_HOST_DEVICE constexpr int slice_begin(int stages, int slice, int slices) {
  return static_cast<int>(int64_t{stages} * slice / slices);
}

constexpr int64_t kShortestSlice90 = 512;
/// The same on sm_90a: 1, 2 or 4. Narrow results of a large depth alone: there tiles are too few
/// for a GPU however small they are, and a batch loses little without tiles of two cells.
/// @param tuned  of Sm90Tuning: as many in any width, or what there are stages for.
int slices_of_sm90(int64_t n, int64_t k, int tuned = 0);

/// One job for each cell and slice, slices of a cell in a row; the deepest shapes first, and in the
/// order of `raster` inside a matrix.
std::vector<TileJob> square_jobs(std::span<const SymmetricShape> shapes);

/// Jobs of a persistent grid: block b takes jobs [first[b], first[b + 1]), in order.
struct JobList {
  std::vector<TileJob> jobs;
  std::vector<int32_t> first;  // blocks + 1
};

/// The mixed list (mixed_jobs.cpp): squares of 2 x 2 cells off the diagonal are pairs, given to as
/// few clusters (blocks 2i and 2i + 1, which meet the same pairs in the same order, before all
/// else) as end in time. The others begin with what lies on the diagonals, matrix by matrix, beside
/// the pairs of the same matrices: on its own it would read more than the memory gives. Pairs are
/// cut into two wide jobs, wide jobs into squares, where a list ends sooner so; between lists that
/// end at once the one with more pairs is taken. Time counts what an SM takes in: squares off the
/// diagonal a seventh more than their products. Shapes with slices have squares alone: the block
/// that adds slices up keeps two sums of each element.
/// @param blocks  of the grid; even.
/// @param tuning  without `pairs` all of them are cut; `raster` orders what is dealt.
JobList mixed_jobs(std::span<const SymmetricShape> shapes, int blocks,
                   const Sm90Tuning& tuning = {});

/// Tiles of a cell and a half in place of the mixed list, from the diagonal to the end of each row
/// of cells, dealt to the blocks in turn, the deepest shapes first. They bring no more bytes than
/// an SM takes in while it multiplies, as squares do, and end a round earlier than wide ones: for
/// shapes that are just larger than one round of squares. None with slices.
/// @param raster  of Sm90Tuning.
JobList medium_jobs(std::span<const SymmetricShape> shapes, int blocks, int64_t raster = 0);

/// What the busiest block of a list has, where a job costs what `cost` says of it.
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

/// Products of a job of the mixed list, in cells x terms; and what the busiest block of a list has.
int64_t cost_of(const TileJob& job, std::span<const SymmetricShape> shapes);
int64_t makespan_of(const JobList& list, std::span<const SymmetricShape> shapes);

}  // namespace muonrt::cuda
