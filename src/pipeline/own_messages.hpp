#pragma once

#include <cstdint>

#include "plan/rank_chunk.hpp"

namespace muonrt {

struct SendAndReceive {
  const void *send, *receive;
};

/// Removes a rank's messages to itself from the lists. The packs then write the blocks of these
/// messages directly to the receive buffers, which avoids a copy and a second buffer. If a message
/// to a peer has the same bytes as one of these messages, it is also sent from the receive buffer.
/// The remaining messages in the send buffer move to lower offsets (`bytes_of` in
/// plan/buffers.hpp).
///
/// Packs cannot overwrite blocks that are still needed, because the unpack that last read a receive
/// buffer runs before them on the compute stream. Before a chunk packs its update, it also waits
/// until the previous user of the buffer has sent its update.
/// @param gather, returned  Buffers of the chunk, in one allocation.
void keep_own_messages_in_place(RankChunk& chunk, int32_t rank, const SendAndReceive& gather,
                                const SendAndReceive& returned);

}  // namespace muonrt
