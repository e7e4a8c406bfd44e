#pragma once

#include <cstdint>

#include "plan/rank_chunk.hpp"

namespace muonrt {

struct SendAndReceive {
  const void *send, *receive;
};

/// Keeps the messages of a rank to itself in place: they leave the lists of messages, and the packs
/// write their blocks to the receive buffers, from which they are unpacked. So they are neither
/// copied nor stored twice. Peers that receive the same bytes are sent them from there, too. The
/// other messages of a send buffer close the gap (`bytes_of` in plan/buffers.hpp).
/// @param gather, returned  the buffers of the chunk, in one allocation.
void keep_own_messages_in_place(RankChunk& chunk, int32_t rank, const SendAndReceive& gather,
                                const SendAndReceive& returned);

}  // namespace muonrt
