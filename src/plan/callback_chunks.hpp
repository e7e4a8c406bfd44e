#pragma once

#include <cstdint>
#include <vector>

#include "plan/exchange.hpp"

namespace muonrt {

/// Fills the chunk of a parameter that the caller's gather and redistribute functions transfer. One
/// owner has all its matrices, and every rank takes part. The buffers have the transport dtype: the
/// holder's buffer is the local shard, the owner's the whole tensor, both row-major.
/// @param ids  the matrices of the parameter, ascending.
void add_callback_chunk(const ExchangeContext& context, int rank, const std::vector<int32_t>& ids,
                        RankChunk& chunk);

/// Return the bytes of the holder's buffer on `rank` and of the owner's buffer, multiples of
/// kMessageAlignment.
int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank);
int64_t callback_full_bytes(const Plan& plan, int32_t param);

}  // namespace muonrt
