#pragma once

#include <cstdint>

#include "plan/rank_chunk.hpp"

namespace muonrt {

struct SendAndReceive {
  const void *send, *receive;
};

/// Removes a rank's messages to itself from the lists. Instead, the packs write the blocks of these
/// messages directly to the receive buffers, so that they are neither copied nor stored twice. If a
/// message to a peer has the same bytes, it is also sent from the receive buffer. In the send
/// buffer, the following messages move to lower offsets (`bytes_of` in plan/buffers.hpp).
///
/// The packs run on the compute stream. The unpack that last read a receive buffer runs on the same
/// stream, so the packs do not overwrite blocks that are still needed. Before a chunk packs its
/// update, it also waits until the previous user of the buffer has sent its update.
/// @param gather, returned  Buffers of the chunk, in one allocation.
void keep_own_messages_in_place(RankChunk& chunk, int32_t rank, const SendAndReceive& gather,
                                const SendAndReceive& returned);

}  // namespace muonrt
