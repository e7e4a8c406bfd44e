#pragma once

#include <span>
#include <vector>

#include "cuda/symmetric/job_list.hpp"

// Small tiles for few and small matrices. A tile has 64 rows by 64 or 128 columns. One thread block
// computes it, or one cluster if the depth is cut. Small tiles read more bytes for each product
// than the large tiles of job_list.hpp, but use more SMs of a GPU. The choice changes no bit,
// because the sum of an element is the same in every tile.

namespace muonrt::cuda {

constexpr int kSmallCell = 64;

/// Returns one job for each small tile on and above the diagonal, deepest shapes first. row and col
/// count cells of kSmallCell. kWide has two of them, col and col + 1.
/// @param tiles  kSmall or kSmallWide.
/// @param raster  from Sm90Tuning.
std::vector<TileJob> small_jobs(std::span<const SymmetricShape> shapes, Tiles tiles,
                                int64_t raster = 0);

/// Returns whether lists of this kind are for persistent grids.
constexpr bool persistent(Tiles tiles) { return tiles == Tiles::kLarge || tiles == Tiles::kMedium; }

/// Returns the clocks that the products of a list of shapes take in a model of the tensor cores, of
/// the bandwidth from L2 to an SM, and of the total bandwidth of L2. The result is used only to
/// compare these kernels with each other.
/// @param sms  number of SMs that compute.
double clocks_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);
double clocks_of(std::span<const SymmetricShape> shapes, const std::vector<TileJob>& small,
                 int sms);

/// Returns the tiles with which a launch of these shapes ends first. Small tiles are possible only
/// if all shapes have the same number of slices.
Tiles tiles_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);

}  // namespace muonrt::cuda
