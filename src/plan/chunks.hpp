#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// One matrix that travels. Items come in the order that breaks ties (by name).
struct ChunkItem {
  int32_t owner;  // rank
  int32_t batch;  // equal: may be orthogonalized in one launch
  int64_t cost;   // FLOPs
  int64_t bytes;  // of the whole matrix, transport dtype
};

struct Chunking {
  int32_t chunks = 0;
  std::vector<int32_t> chunk_of;  // of each item, in [0, slots)
};

/// Cuts what every owner has to do into chunk slots that all owners number together: largest
/// matrices first, equal batches together, at most `budget` bytes for an owner in a slot (or one
/// matrix that is larger alone), and in every slot about the same cost for every owner that has
/// work left. As few slots as the owner with the most bytes needs; none is empty.
Chunking cut_chunks(const std::vector<ChunkItem>& items, int64_t budget);

}  // namespace muonrt
