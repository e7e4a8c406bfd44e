#pragma once

#include <cstdint>
#include <vector>

#include "plan/exchange.hpp"

namespace muonrt {

/// A slot that the caller's gather and redistribute functions carry: one parameter, all its
/// matrices at one owner. Every rank takes part. Buffers in the transport dtype: the holder's is
/// the local shard, row-major as the caller registered it; the owner's is the whole tensor,
/// row-major.
/// @param ids  the parameter's matrices, ascending.
void add_callback_chunk(const ExchangeContext& context, int rank, const std::vector<int32_t>& ids,
                        RankChunk& chunk);

/// Bytes of the holder's buffer on `rank`, and of the owner's; multiples of kMessageAlignment.
int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank);
int64_t callback_full_bytes(const Plan& plan, int32_t param);

}  // namespace muonrt
