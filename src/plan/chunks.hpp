#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace muonrt {

/// One matrix that is exchanged. The items are in the order of their names, which breaks ties.
struct ChunkItem {
  int32_t owner;  // rank of the owner
  int32_t batch;  // equal for matrices that may share a launch
  int64_t cost;   // cost in FLOPs
  int64_t bytes;  // size of the whole matrix in the transport dtype
};

struct Chunking {
  int32_t chunks = 0;
  std::vector<int32_t> chunk_of;  // for each item, its chunk in [0, chunks)
};

/// Divides the matrices of all owners into chunks. All owners share one numbering of the chunks.
/// Each owner exchanges its largest matrices first, with matrices of the same batch next to each
/// other.
///
/// In each chunk, an owner has at most `budget` bytes, or one larger matrix. All owners that have
/// remaining matrices have about the same cost in a chunk. The number of chunks is the smallest
/// number that keeps every owner within the budget, or `wanted` if that is larger and there are
/// enough matrices. No chunk is empty.
Chunking cut_chunks(const std::vector<ChunkItem>& items, int64_t budget, int32_t wanted = 1);

/// Returns the number of bytes per owner from which an additional chunk is worth its cost: its
/// launches, and one message for each of the `ranks` that hold a matrix. For at most 64 such ranks,
/// the result is `least`.
inline int64_t least_part(int64_t least, int64_t ranks) {
  return std::max(least, least / 64 * ranks);
}

/// Returns how many chunks are needed to overlap exchanges with products:
/// * If `window` is 1, nothing overlaps, and the result is 1.
/// * Usually the result is `window`, the number of chunks in flight. This requires that at least
///   one owner has one matrix and `least` bytes for each chunk.
/// * The result is larger, up to kMaxChunks, if an owner has kEfficient times as many bytes for
///   each chunk.
int32_t chunks_to_overlap(const std::vector<ChunkItem>& items, int window, int64_t least);

constexpr int64_t kEfficient = 8;
constexpr int32_t kMaxChunks = 16;

}  // namespace muonrt
