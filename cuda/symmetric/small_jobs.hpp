#pragma once

#include <span>
#include <vector>

#include "cuda/symmetric/job_list.hpp"

// Small tiles for a few small matrices. A tile has 64 rows and 64 or 128 columns. One thread block
// computes it, or one cluster if the depth is divided into slices. For each product, small tiles
// read more bytes than the large tiles of job_list.hpp, but they occupy more SMs of a GPU. The
// choice does not affect the results, because the sum of an element is the same in every tile.

namespace muonrt::cuda {

constexpr int kSmallCell = 64;

/// Returns one job for each small tile on and above the diagonal, deepest shapes first. `row` and
/// `col` are in units of kSmallCell elements. A kWide job computes two cells, `col` and `col + 1`.
/// @param tiles  kSmall or kSmallWide.
/// @param raster  from Sm90Tuning.
std::vector<TileJob> small_jobs(std::span<const SymmetricShape> shapes, Tiles tiles,
                                int64_t raster = 0);

/// Returns whether a persistent grid processes lists of these tiles.
constexpr bool persistent(Tiles tiles) { return tiles == Tiles::kLarge || tiles == Tiles::kMedium; }

/// Returns the number of clock cycles that the products of a list of shapes take according to a
/// model. The model describes the tensor cores, the bandwidth from L2 to an SM, and the total
/// bandwidth of L2. Use the result only to compare these kernels with each other.
/// @param sms  number of SMs that compute products.
double clocks_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);
double clocks_of(std::span<const SymmetricShape> shapes, const std::vector<TileJob>& small,
                 int sms);

/// Returns the kind of tiles that is expected to make a launch of these shapes the fastest. Small
/// tiles are possible only if all shapes have the same number of slices.
Tiles tiles_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);

}  // namespace muonrt::cuda
