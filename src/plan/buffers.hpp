#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/checked.hpp"
#include "plan/problem.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// The buffers that a rank uses for a chunk.
enum ChunkBuffer : size_t {
  kGatherSend,
  kGatherReceive,
  kReturnSend,
  kReturnReceive,
  kSums,
  kDirectionBytes,
  kChunkBuffers
};

/// The sizes of these buffers in bytes.
struct ChunkBytes : std::array<int64_t, kChunkBuffers> {
  ChunkBytes() : std::array<int64_t, kChunkBuffers>{} {}
};

/// Returns the size in bytes of a message in its buffer, including padding.
inline int64_t stored_bytes(const Region& message) {
  return round_up(message.bytes, kMessageAlignment);
}

/// Returns the sizes of a chunk's buffers on `rank`. A message from the rank to itself needs space
/// only in the receive buffer.
inline ChunkBytes bytes_of(const RankChunk& chunk, int32_t rank) {
  const auto own = [&](const std::vector<Region>& sends) {
    int64_t bytes = 0;
    for (const Region& r : sends) bytes += r.peer == rank ? stored_bytes(r) : 0;
    return bytes;
  };
  ChunkBytes out;
  out[kGatherSend] = chunk.gather_send_bytes - own(chunk.gather_sends);
  out[kGatherReceive] = chunk.gather_receive_bytes;
  out[kReturnSend] = chunk.return_send_bytes - own(chunk.return_sends);
  out[kReturnReceive] = chunk.return_receive_bytes;
  out[kSums] = chunk.sum_bytes;
  out[kDirectionBytes] = chunk.direction_bytes;
  return out;
}

/// Counts the bytes that a rank allocates for its chunks. The pipeline allocates these sizes, and
/// the plan reports them.
class RankBuffers {
 public:
  explicit RankBuffers(const PlanOptions& options)
      : atomic_(options.commit == CommitMode::kAtomic),
        window_(static_cast<size_t>(options.window)) {}

  void add(int32_t chunk, const ChunkBytes& bytes) {
    const size_t position = static_cast<size_t>(chunk) % window_;
    if (in_flight_.size() <= position) in_flight_.resize(position + 1);
    ChunkBytes& buffers = in_flight_[position];
    for (size_t k = 0; k < kChunkBuffers; ++k) {
      if (atomic_ && (k == kReturnReceive || k == kSums)) {
        staged_ += bytes[k];
      } else {
        buffers[k] = std::max(buffers[k], bytes[k]);
      }
    }
  }

  /// Returns the sizes of the buffers that are allocated. All chunks whose index modulo the window
  /// is i use the same buffers one after the other, so entry i contains the largest sizes of these
  /// chunks. The list ends at the last entry that is used.
  const std::vector<ChunkBytes>& in_flight() const { return in_flight_; }
  int64_t message_bytes() const {
    int64_t sum = 0;
    for (const ChunkBytes& buffers : in_flight_)
      for (const int64_t bytes : buffers) sum += bytes;
    return sum;
  }
  /// Returns the bytes of the updates and sums that each chunk keeps until the vote. These bytes
  /// are counted only if commits are atomic.
  int64_t staged_bytes() const { return staged_; }

 private:
  bool atomic_;
  size_t window_;
  std::vector<ChunkBytes> in_flight_;
  int64_t staged_ = 0;
};

}  // namespace muonrt
