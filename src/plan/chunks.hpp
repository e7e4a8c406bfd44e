#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace muonrt {

/// One matrix that is exchanged. The order of the items (by name) breaks ties.
struct ChunkItem {
  int32_t owner;  // rank
  int32_t batch;  // equal for matrices that may share a launch
  int64_t cost;   // FLOPs
  int64_t bytes;  // of the whole matrix, transport dtype
};

struct Chunking {
  int32_t chunks = 0;
  std::vector<int32_t> chunk_of;  // for each item, in [0, chunks)
};

/// Divides the matrices of all owners into chunks with a common numbering: largest matrices first,
/// equal batches adjacent. In each chunk an owner has at most `budget` bytes, or one larger matrix,
/// and all owners that still have matrices have about the same cost. Makes as few chunks as the
/// owner that needs the most, or `wanted` if that is more and the matrices allow it; no chunk is
/// empty.
Chunking cut_chunks(const std::vector<ChunkItem>& items, int64_t budget, int32_t wanted = 1);

/// Returns the bytes of an owner that are worth another chunk. A chunk costs launches and a message
/// for each of the `ranks` that hold a matrix; up to 64 messages are covered by `least`.
inline int64_t least_part(int64_t least, int64_t ranks) {
  return std::max(least, least / 64 * ranks);
}

/// Returns the number of chunks that is wanted for overlap: as many as are in flight (`window`) if
/// an owner has as many matrices and `least` bytes in each chunk; more, up to kMaxChunks, if it
/// has kEfficient times as many bytes. 1 if the window is 1, because then nothing overlaps.
int32_t chunks_to_overlap(const std::vector<ChunkItem>& items, int window, int64_t least);

constexpr int64_t kEfficient = 8;
constexpr int32_t kMaxChunks = 16;

}  // namespace muonrt
