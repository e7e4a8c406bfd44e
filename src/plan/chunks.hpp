#pragma once

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
/// owner that needs the most; no chunk is empty.
Chunking cut_chunks(const std::vector<ChunkItem>& items, int64_t budget);

}  // namespace muonrt
