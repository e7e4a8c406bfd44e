#pragma once

#include <span>
#include <vector>

#include "cuda/symmetric/job_list.hpp"

// Small tiles for few and small matrices: 64 rows by 64 or 128 columns, one block a tile (or one
// cluster, where the depth is cut). They bring more bytes per product than the large ones of
// job_list.hpp and keep more of a GPU busy. The choice changes no bit: an element's sum is the same
// in any tile.

namespace muonrt::cuda {

constexpr int kSmallCell = 64;

/// One job for each small tile on and above the diagonal: row and col count cells of kSmallCell,
/// kWide has two of them, col and col + 1. The deepest shapes first.
/// @param tiles   kSmall or kSmallWide.
/// @param raster  of Sm90Tuning.
std::vector<TileJob> small_jobs(std::span<const SymmetricShape> shapes, Tiles tiles,
                                int64_t raster = 0);

/// Whether a kind is of lists for persistent grids.
constexpr bool persistent(Tiles tiles) { return tiles == Tiles::kLarge || tiles == Tiles::kMedium; }

/// Clocks of the products of a list of shapes by a model: what a tensor core takes, what an SM can
/// take in from L2, what L2 gives to all. For comparisons of these kernels with one another.
/// @param sms  that compute.
double clocks_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);
double clocks_of(std::span<const SymmetricShape> shapes, const std::vector<TileJob>& small,
                 int sms);

/// The tiles with which a launch of these shapes ends first. Small ones only where all shapes have
/// the same slices.
Tiles tiles_of(std::span<const SymmetricShape> shapes, const JobList& large, int sms);

}  // namespace muonrt::cuda
